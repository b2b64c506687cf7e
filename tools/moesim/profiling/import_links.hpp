#pragma once

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// Logs of nccl-tests, perftest, nvbandwidth and DeepEP into a cluster, with exchanges and links as
// they were measured. Throws UsageError naming the flag, and as study::import_cluster().
ExitCode import_links(const CommandLine& line);

}  // namespace moesim::tool
