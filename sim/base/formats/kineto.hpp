#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace moesim {

// The events of a Chrome trace as torch.profiler (Kineto) writes them: the array "traceEvents", or
// the whole document where that is an array. `file`: .json, or .json.gz. Throws UsageError "FILE:
// ..." for a file that cannot be read, is larger than read_file() and read_gzip() take, or is no
// such trace.
nlohmann::json trace_events(const std::string& file);

// An argument of an event as text: a string as it is, other values as JSON, "" where there is none.
std::string argument_text(const nlohmann::json& arguments, const char* key);

}  // namespace moesim
