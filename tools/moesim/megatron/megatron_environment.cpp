#include "tools/moesim/megatron/megatron_environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

// Shells have them, and no option follows from them.
constexpr std::string_view of_shells[] = {"HOME", "HOSTNAME", "LANG", "LOGNAME", "PATH",
                                          "PWD",  "SHELL",    "TERM", "TMPDIR",  "USER"};

bool tells_options(const std::string& name, std::string_view usual) {
  constexpr std::size_t longest = 40;  // a path or a text is none of an option
  const bool is_of_account =
      name.find("KEY") != std::string::npos || name.find("TOKEN") != std::string::npos;
  return !is_of_account && usual.size() <= longest && usual.find('/') == std::string_view::npos &&
         std::find(std::begin(of_shells), std::end(of_shells), name) == std::end(of_shells);
}

}  // namespace

void note_environment(const model::MegatronArguments& given) {
  std::vector<std::string> others;
  for (const auto& [name, usual] : given.fallbacks()) {
    const char* const value = std::getenv(name.c_str());
    const bool is_other = value != nullptr && *value != '\0' && usual != value;
    if (!is_other || !tells_options(name, usual)) continue;
    others.push_back(fmt::format("{}={}", name, usual.empty() ? "''" : usual));
  }
  if (others.empty()) return;
  note(fmt::format(
      "note: {}: its defaults {} are taken, though your environment has other values: give what "
      "follows from them as options, or write them into the script",
      given.name(), fmt::join(others, ", ")));
}

}  // namespace moesim::tool
