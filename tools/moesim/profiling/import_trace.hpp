#pragma once

#include <string>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// A table of counts (.csv), an array of logits, choices or counts (.npy, .npz) or route logs
// (.jsonl, .jsonl.gz) into a trace. Throws UsageError naming the flag or the file: other files,
// several where one is taken, and as routing::import_count_table(), import_array() and
// import_route_logs().
ExitCode import_trace(const CommandLine& line, const std::string& folder);

}  // namespace moesim::tool
