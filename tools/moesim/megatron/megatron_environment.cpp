#include "tools/moesim/megatron/megatron_environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/megatron/megatron_gpus.hpp"
#include "tools/moesim/megatron/megatron_idle_arguments.hpp"
#include "tools/moesim/megatron/megatron_typed.hpp"

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

// Whether an option that stands on the command line goes before the argument.
bool is_typed(const MegatronInput& input, const std::string& argument) {
  if (input.typed("gpus") && is_of_launcher(argument)) return true;
  bool found = false;
  each_option_argument([&](const std::string& option, const char* each) {
    found = found || (input.typed(option) && argument == each);
  });
  return found;
}

// Whether other options would follow from the script if its variable had this value.
bool changes_options(const MegatronInput& input, const std::string& name, const char* value) {
  try {
    const auto with = model::MegatronArguments::load_with(input.given.source(), name, value);
    const std::vector<std::string> others = input.given.taken_otherwise(with);
    return std::any_of(others.begin(), others.end(), [&](const std::string& argument) {
      return !is_idle_argument(argument) && !is_typed(input, argument);
    });
  } catch (const Error&) {  // it would be refused
    return true;
  }
}

}  // namespace

void note_environment(const MegatronInput& input) {
  const model::MegatronArguments& given = input.given;
  std::vector<std::string> others;
  for (const auto& [name, usual] : given.fallbacks()) {
    const char* const value = std::getenv(name.c_str());
    const bool is_other = value != nullptr && *value != '\0' && usual != value;
    if (!is_other || !tells_options(name, usual) || !changes_options(input, name, value)) continue;
    others.push_back(fmt::format("{}={}", name, usual.empty() ? "''" : usual));
  }
  if (others.empty()) return;
  note(fmt::format(
      "note: {}: its defaults {} are taken, though your environment has other values: give "
      "them with the script ('NAME=VALUE {}'), or what follows from them as options",
      given.name(), fmt::join(others, ", "), given.name(), given.name(), fmt::join(others, ", ")));
}

}  // namespace moesim::tool
