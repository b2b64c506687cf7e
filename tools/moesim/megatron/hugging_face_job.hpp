#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/model/megatron/megatron_arguments.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// The step of a job of Hugging Face's Trainer or Accelerate, of what its file says.
struct HuggingFaceJob {
  // "moesim train --model CONFIG.JSON --gpus 64 --zero 3 ..."
  std::string command;
  // What to know before it is typed: "put in CONFIG.JSON, N", "fp16 takes as long as bf16".
  std::vector<std::string> remarks;
};

// None of a file that says a model's sizes or a layout by Megatron-LM's arguments, or is of
// neither.
std::optional<HuggingFaceJob> hugging_face_job(const model::MegatronArguments& given,
                                               const CommandLine& line);

}  // namespace moesim::tool
