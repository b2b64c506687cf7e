#pragma once

#include <string>

namespace moesim::tool {

// Whether an argument (without dashes) of Megatron-LM, torchrun or Slurm changes nothing that a
// step's time or memory is predicted from.
bool is_idle_argument(const std::string& argument);

}  // namespace moesim::tool
