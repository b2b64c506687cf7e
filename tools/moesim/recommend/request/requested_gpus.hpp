#pragma once

#include <vector>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// The numbers of --gpus, which may be a list with ranges, in order, each once. Throws UsageError
// naming the flag. None where it is not there.
std::vector<int> requested_gpus(const CommandLine& line);

}  // namespace moesim::tool
