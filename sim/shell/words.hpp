#pragma once

#include <string>
#include <vector>

#include "sim/shell/files.hpp"
#include "sim/shell/values.hpp"

namespace moesim::shell {

struct Word {
  std::string text;
  int line = 0;
};

struct Command {
  enum class Kind {
    command,
    batch,  // a line of #SBATCH
    list,   // arguments that a variable or a file is set to, whether a command uses them or not
  };
  static constexpr int no_command = -1;

  Kind kind = Kind::command;
  std::vector<Word> words;
  std::string variable;    // of a list, "" for one in a here-document
  int outer = no_command;  // the number of the command whose text, here-document or function it is
  bool is_called = true;   // not in a function that no command calls
  Doubts doubts = {};      // of the variables that are put in

  // Its first word that is no reserved one, such as "then"; the number of its words without one.
  std::size_t program() const;
};

// The commands of a script in its order, without assignments; each list that a variable is set to
// stands among them. Quotes and comments are taken off, continued lines joined, variables and
// arrays that are set above put in: $NAME, ${NAME}, ${NAME:-WORDS} (-, =, ?, +, each with or
// without ':'), ${NAME:OFFSET:LENGTH}, ${NAME[@]}, ${NAME[KEY]}, ${!NAME}, ${!NAME[@]},
// $((A * B)), ${NAME/TEXT/OTHER}, ${#NAME}, $(echo WORDS), $(cat <<EOF). Others stay as they are
// written, other operations too. Branches whose condition is known are read where they are taken,
// of others all: what is set in one is added to a list that is set above, and the variables are in
// doubt. Nothing is read behind "exit". A loop is read for each turn that is known, 1000 times in
// all; what others add up is not known. What the commands of a pipe set they set for themselves.
// Functions are read where they are called, with "$@", those that are not at the end;
// here-documents and texts with arguments as scripts. "#SBATCH" begins a command, whose options set
// the variables that Slurm would. Slurm's -N, -n and -G are --nodes, --ntasks and
// --gpus, -np of mpirun is --np. Throws UsageError naming file and line for a quote without an end.
//
// What a file that is sourced sets and runs is read as if it stood there; `files` says which of
// them there are, and of which file a line is.
std::vector<Command> commands_in(const std::string& script, Files& files);
std::vector<Command> commands_in(const std::string& script, const std::string& name);

}  // namespace moesim::shell
