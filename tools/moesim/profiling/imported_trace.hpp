#pragma once

#include <string>
#include <vector>

#include "sim/routing/traces/trace_import.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// What --origin may be, beside "not stated".
const std::vector<std::string>& trace_origins();

// Writes a trace to a folder, with what the flags say of its origin; notes say what it holds, what
// to do with it, and what its logits are not likely to be. Throws UsageError for an --origin that
// is not known.
void write_imported_trace(const CommandLine& line, const std::string& folder,
                          const routing::ImportedTrace& imported_trace);

}  // namespace moesim::tool
