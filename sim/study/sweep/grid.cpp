#include "sim/study/sweep/grid.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/decimal.hpp"
#include "sim/base/error.hpp"
#include "sim/base/text.hpp"

namespace moesim::study {

std::vector<std::string> expand(const std::string& flag, const std::string& text, bool is_number) {
  std::vector<std::string> values;
  for (const std::string_view part : split(text, ',')) {
    const std::string item(part);
    if (item.empty()) {
      throw UsageError(
          fmt::format("{}: '{}' has an empty item: write values separated by single "
                      "commas",
                      flag, text));
    }
    if (!is_number || item.find(':') == std::string::npos) {
      values.push_back(item);
      continue;
    }
    std::vector<std::string> ends;  // with 1e3 as 1000
    for (const std::string_view end : split(item, ':')) {
      ends.push_back(without_exponent(end).value_or(std::string(end)));
    }
    const std::string range = fmt::format("{}", fmt::join(ends, ":"));
    for (const Decimal& value : parse_decimal_list(range, flag)) values.push_back(value.text());
  }
  return values;
}

std::vector<std::string> expand(const scenario::Option& option, const std::string& text) {
  return expand(option.flag(), text, option.is_number());
}

std::vector<scenario::OptionValues> grid(const scenario::OptionValues& lists) {
  std::vector<scenario::OptionValues> points(1);
  for (const scenario::Option& option : scenario::scenario_options()) {
    const auto typed = lists.find(option.name);
    if (typed == lists.end()) continue;
    const std::vector<std::string> values = expand(option, typed->second);
    if (values.size() > max_scenarios / points.size()) {
      throw UsageError(
          fmt::format("the grid has more than {} scenarios: use fewer values", max_scenarios));
    }
    std::vector<scenario::OptionValues> longer;
    longer.reserve(points.size() * values.size());
    for (const scenario::OptionValues& point : points) {
      for (const std::string& value : values) {
        longer.push_back(point);
        longer.back()[option.name] = value;
      }
    }
    points = std::move(longer);
  }
  return points;
}

}  // namespace moesim::study
