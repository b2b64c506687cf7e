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

std::vector<ShellCommand> shell_commands(const std::string& script, const std::string& name) {
  ShellScript whole{name};
  ShellReader(whole, ShellText::of_script(script)).read_whole();
  return std::move(whole.commands);
}

}  // namespace moesim::model
