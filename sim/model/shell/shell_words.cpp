#include "sim/model/shell/shell_words.hpp"

#include <cstddef>
#include <set>
#include <utility>

#include "sim/model/shell/shell_reader.hpp"
#include "sim/model/shell/shell_text.hpp"

namespace moesim::model {

std::size_t ShellCommand::program() const {
  static const std::set<std::string> reserved = {"if", "then", "else", "elif", "while", "until",
                                                 "do", "!",    "{",    "time", "exec",  "nohup"};
  std::size_t at = 0;
  while (at < words.size() && reserved.contains(words[at].text)) ++at;
  return at;
}

std::vector<ShellCommand> shell_commands(const std::string& script, ShellFiles& files) {
  ShellScript whole{files};
  ShellReader(whole, files.add_script(script)).read_whole();
  return std::move(whole.commands);
}

std::vector<ShellCommand> shell_commands(const std::string& script, const std::string& name) {
  ShellFiles files(name);
  return shell_commands(script, files);
}

}  // namespace moesim::model
