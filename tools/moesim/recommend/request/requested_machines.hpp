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

}  // namespace moesim::tool
