#pragma once

#include "tools/moesim/megatron/megatron_input.hpp"

namespace moesim::tool {

// Notes the variables of which the script's defaults are taken though the environment has other
// values, with which other options would follow from the script: it is often launched as
// "TP=4 sbatch run.sh". Precondition: all arguments that options follow from were asked for.
void note_environment(const MegatronInput& input);

}  // namespace moesim::tool
