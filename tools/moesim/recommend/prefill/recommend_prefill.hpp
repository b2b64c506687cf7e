#pragma once

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// `recommend --mode prefill`: routers, capacity factors, expert parallelism and micro-batch of a
// forward pass, by `simulate`. Throws UsageError naming a flag of training.
ExitCode recommend_prefill(const CommandLine& line);

}  // namespace moesim::tool
