#pragma once

#include "sim/model/megatron/megatron_arguments.hpp"

namespace moesim::tool {

// Notes the variables of which the script's defaults are taken though the environment has other
// values: a script is often launched as "TP=4 sbatch run.sh".
void note_environment(const model::MegatronArguments& given);

}  // namespace moesim::tool
