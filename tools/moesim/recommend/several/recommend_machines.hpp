#pragma once

#include <vector>

#include "tools/moesim/base/command.hpp"
#include "tools/moesim/recommend/request/requested_machines.hpp"

namespace moesim::tool {

// The best on each machine, and on each number of GPUs; how many times as fast each is as the first
// and how sure that is; up to which price of a GPU hour it is cheaper per token; and which is the
// cheapest. What one machine refuses is said, and the others are answered.
ExitCode recommend_machines(const CommandLine& line, const std::vector<Machine>& machines);

}  // namespace moesim::tool
