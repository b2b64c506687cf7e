#pragma once

#include <string>

#include "tools/moesim/megatron/megatron_input.hpp"

namespace moesim::tool {

// Sets --gpus to what the launcher in the file starts, unless it was typed: torchrun's before
// DeepSpeed's, Accelerate's, MPI's and Slurm's, which a shell may have filled in. One task on each
// node is not one GPU on each: torchrun starts others from it. Notes that the default is taken
// where the file does not say how many there are. Throws UsageError where it gives a variable that
// it does not set.
void take_gpus(MegatronInput& input);
// Whether an argument says, with others, how many GPUs a launcher starts.
bool is_of_launcher(const std::string& argument);

// Whether a launcher's arguments are there, which say how many there are.
bool tells_gpus(const model::MegatronArguments& given);

}  // namespace moesim::tool
