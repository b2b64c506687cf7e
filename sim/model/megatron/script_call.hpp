#pragma once

#include <string>
#include <vector>

namespace moesim::model {

// How a launch script or YAML is run: "TP=2 EP=8 run.sh large 4".
struct ScriptCall {
  struct Assignment {
    std::string name;
    std::string value;  // without quotes
  };
  std::vector<Assignment> assignments;
  std::string path;
  std::vector<std::string> words;  // the arguments of the script, without quotes
};

// What stands behind the last dot of a path, "sh" of "a/run.sh"; "" where it has none.
std::string ending_of(const std::string& path);

// Whether the name of a file is that of a script (.sh, .bash, .slurm, .sbatch) or YAML (.yaml,
// .yml).
bool is_launch_file(const std::string& path);
bool is_yaml_file(const std::string& path);

// A text that is the path of a file, spaces and all, or has no launch file among its words, is the
// path itself. Words are divided by spaces outside of quotes.
ScriptCall script_call(const std::string& text);

// The script with what its call sets before its first command, on the same line.
std::string script_as_called(const std::string& script, const ScriptCall& call);

// "'it'\''s'" of "it's", for a shell.
std::string quoted_for_shell(const std::string& text);

// The variables of a value, such as TP of "$TP" and "${TP}", 1 of "$1"; none where it has other
// operations on them than arithmetic.
std::vector<std::string> variables_in(const std::string& value);

// The call that gives these variables: "TP=VALUE run.sh ARGUMENTS".
std::string call_with(const std::vector<std::string>& variables, const std::string& path);

}  // namespace moesim::model
