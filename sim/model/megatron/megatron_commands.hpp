#pragma once

#include <string>
#include <vector>

#include "sim/shell/words.hpp"

namespace moesim::model {

// Which commands of a launch script tell of its training.
struct TrainingCommands {
  std::vector<bool> taken;  // of each
  // What has arguments of Megatron-LM that are left out, such as "2 of tools/server.py (line 3)" or
  // "2 of OLD (line 4), which no command uses".
  std::vector<std::string> left_out;
  // Which of several commands is taken, and which of the values of a variable.
  std::vector<std::string> notes;
  // The command that trains is not among them, or uses variables that are not known: all are taken,
  // and the lists of all variables.
  bool takes_lists = false;
};

// The last one that runs a script named for training (pretrain_gpt.py, train.sh) with arguments of
// Megatron-LM, of those with at least half as many as another; without one, that of the script that
// has most such arguments. A function that no command calls is left out unless it has the only one.
// What runs the command is taken too, as srun is of "srun bash -c", and Slurm's #SBATCH, sbatch and
// salloc; other launchers where none of these says how many GPUs there are.
TrainingCommands training_commands(const std::vector<shell::Command>& commands,
                                   const shell::Files& files = shell::Files());

}  // namespace moesim::model
