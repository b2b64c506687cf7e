#pragma once

#include <vector>

#include "tools/moesim/base/command.hpp"
#include "tools/moesim/recommend/request/search_source.hpp"

namespace moesim::tool {

// The search on each of several numbers of GPUs: the best layout of each, what it costs, and up to
// which number scaling pays (study::scaling_of()). A number without a layout is a row with its
// reason. Throws UsageError naming flags of one search, and the reason of the largest number where
// none has a layout.
ExitCode recommend_scaling(const SearchSource& source, const std::vector<int>& gpus);

}  // namespace moesim::tool
