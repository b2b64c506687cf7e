#pragma once

#include <string>
#include <vector>

namespace moesim::model {

// A word of a shell script; an empty one is the end of a command.
struct ShellWord {
  std::string text;
  int line = 0;
};

// The words of a script in its order, assignments left out but for the words of what they hold.
// Quotes and comments are taken off, continued lines joined, variables that are set above put in:
// $NAME, ${NAME}, ${NAME:-WORDS} (-, =, ?, +, each with or without ':'), ${NAME:OFFSET:LENGTH},
// $((A * B)). Others stay as they are written, other operations too. "#SBATCH" begins a command, whose options set the variables that
// Slurm would. Here-documents are read as scripts. Slurm's -N and -n are --nodes and --ntasks. Throws UsageError naming file and line
// for a quote without an end.
std::vector<ShellWord> shell_words(const std::string& script, const std::string& name);

}  // namespace moesim::model
