#pragma once

#include <string>
#include <vector>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// A machine that a search is asked for.
struct Machine {
  std::string name;   // "b200-sxm"; "b200-sxm on hgx-b200" where several clusters are typed
  CommandLine typed;  // with its --profile, --cluster and --gpu-hour-price alone
};

// Each of --profile on each of --cluster, as `train` combines them. Throws UsageError for empty and
// repeated names, and for another number of prices than 1, that of profiles or that of machines.
std::vector<Machine> requested_machines(const CommandLine& line);

// The best on each machine, and on each number of GPUs; how many times as fast each is as the first
// and how sure that is; up to which price of a GPU hour it is cheaper per token; and which is the
// cheapest. What one machine refuses is said, and the others are answered.
ExitCode recommend_machines(const CommandLine& line, const std::vector<Machine>& machines);

}  // namespace moesim::tool
