#include "sim/shell/words.hpp"

#include <cstddef>
#include <set>
#include <utility>

#include "sim/shell/reader.hpp"
#include "sim/shell/text.hpp"

namespace moesim::shell {

std::size_t Command::program() const {
  static const std::set<std::string> reserved = {"if", "then", "else", "elif", "while", "until",
                                                 "do", "!",    "{",    "time", "exec",  "nohup"};
  std::size_t at = 0;
  while (at < words.size() && reserved.contains(words[at].text)) ++at;
  return at;
}

std::vector<Command> commands_in(const std::string& script, Files& files) {
  Script whole{files};
  Reader(whole, files.add_script(script)).read_whole();
  return std::move(whole.commands);
}

std::vector<Command> commands_in(const std::string& script, const std::string& name) {
  Files files(name);
  return commands_in(script, files);
}

}  // namespace moesim::shell
