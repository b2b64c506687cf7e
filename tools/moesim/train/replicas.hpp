#pragma once

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// How often a step is drawn: --replicas of the line, 1 without. Throws UsageError.
int requested_replicas(const CommandLine& line);

}  // namespace moesim::tool
