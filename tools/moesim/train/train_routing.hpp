#pragma once

#include <optional>
#include <vector>

#include "sim/training/training_job.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// The routing flags of `train`: scenario options with their own help, and what of it is drawn.
std::vector<Flag> training_routing_flags();

// What the flags ask for; nothing where none of them is given. `job` has its profile, cluster,
// model and layout. Throws UsageError naming the flag. Options without effect are noted, unless the
// line is one of many that a search makes (`of_search`).
std::optional<training::DrawnRouting> requested_routing(const CommandLine& line,
                                                        const training::TrainingJob& job,
                                                        bool of_search = false);

}  // namespace moesim::tool
