#pragma once

#include <string>

#include "sim/model/megatron/megatron_arguments.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// For a file of a job of Hugging Face's Trainer or Accelerate, which says neither a model's sizes
// nor a layout by Megatron-LM's arguments: the command that prices its step, with what was read of
// it: "moesim train --model CONFIG.JSON --gpus 64 --zero 3 ...". CONFIG.JSON, N: to be put in. ""
// for other files.
std::string hugging_face_command(const model::MegatronArguments& given, const CommandLine& line);

}  // namespace moesim::tool
