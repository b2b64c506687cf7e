#include "tools/moesim/megatron/megatron_input.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "sim/base/text.hpp"

namespace moesim::tool {

std::optional<std::int64_t> MegatronInput::whole(const std::string& option,
                                                 std::int64_t usual) const {
  if (typed(option)) return parse_number<std::int64_t>(line.get(option));
  const auto found = options.find(option);
  return found == options.end() ? usual : parse_number<std::int64_t>(found->second);
}

void take_choice(MegatronInput& input, const char* option, const char* argument, const char* usual,
                 const std::map<std::string, std::string>& known) {
  input.given.has(argument);
  if (input.typed(option)) return;
  const std::string text = input.given.text(argument).value_or(usual);
  const auto found = known.find(text);
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const auto& each : known) names.push_back(each.first);
    input.given.fail(argument, fmt::format("'{}': known are {}", text, fmt::join(names, ", ")));
  }
  input.options[option] = found->second;
}

}  // namespace moesim::tool
