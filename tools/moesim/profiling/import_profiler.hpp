#pragma once

#include <string>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// Profiler traces into a folder: the routing that uneven exchanges show as a trace, of padded ones
// their capacity as notes; exchanges.csv, a row for each all-to-all, and parts.csv, kernel times by
// part of the step of median length, where the files have kernels. Throws UsageError naming the
// flag or the file, as routing::import_profiler_traces(), and for experts that do not fit the ranks
// and the blocks.
ExitCode import_profiler(const CommandLine& line, const std::string& folder);

}  // namespace moesim::tool
