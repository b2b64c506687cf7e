#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/routing/traces/trace_import.hpp"

namespace moesim::tool {

// What profiler traces say beside the routing, into an existing folder: exchanges.csv, a row for
// each all-to-all, and parts.csv, kernel times by part of the step of median length, where the
// files have kernels. Notes say so.
void write_profiled_times(const std::string& folder, const routing::ProfiledExchanges& found,
                          const std::vector<std::string>& files);

// The capacity that padded exchanges have; notes say it, and what would be needed to know more.
// `experts`, `tokens` (of a rank and step): 0 where they were not given. Throws UsageError for
// experts that do not fit the ranks and the blocks.
void note_padded(const routing::ProfiledExchanges& found, int experts, std::int64_t tokens,
                 int top_k);

}  // namespace moesim::tool
