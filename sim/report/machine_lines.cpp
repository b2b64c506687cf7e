#include "sim/report/machine_lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "sim/base/error.hpp"
#include "sim/profile/profile.hpp"
#include "sim/report/formats.hpp"

namespace moesim::report {
namespace {

using study::Row;

const Cell& cell_of(const Row& row, const char* column) { return row[study::column_index(column)]; }

double number(const Row& row, const char* column) { return number_in(cell_of(row, column)); }

bool is_baseline(const Row& row) {
  return number(row, "speed_over_baseline_p05") == 1 && number(row, "speed_over_baseline_p95") == 1;
}

std::string machine_of(const Row& row) {
  return text_of(cell_of(row, "profile")) + " on " + text_of(cell_of(row, "cluster"));
}

// The options but profile and cluster in which two rows differ.
std::vector<std::size_t> differences(const Row& one, const Row& other,
                                     const std::vector<std::size_t>& options) {
  static const std::set<std::size_t> machine = {study::column_index("profile"),
                                                study::column_index("cluster")};
  std::vector<std::size_t> found;
  for (const std::size_t column : options) {
    if (machine.count(column) == 0 && one[column] != other[column]) found.push_back(column);
  }
  return found;
}

// "gb200 on gb200-nvl72 with expert_parallel 4".
std::string text_with(const Row& row, const std::vector<std::size_t>& options) {
  std::vector<std::string> values;
  for (const std::size_t column : options) {
    const std::string value = text_of(row[column]);
    values.push_back(
        fmt::format("{} {}", study::result_columns()[column].name, value.empty() ? "none" : value));
  }
  return machine_of(row) +
         fmt::format("{}{}", values.empty() ? "" : " with ", fmt::join(values, ", "));
}

// What cancels between two rows, as speed_ratio() has it. Nothing where they are no two machines or
// clusters.
std::optional<std::string> cancels(const Row& one, const Row& other) {
  const std::string first = text_of(cell_of(one, "profile"));
  const std::string second = text_of(cell_of(other, "profile"));
  if (first == second) return "errors of the software cancel: both have one profile";
  try {
    const auto here = profile::Profile::load(first);
    const auto there = profile::Profile::load(second);
    if (here.device().name == there.device().name) return std::nullopt;
    if (here.software() || there.software()) {
      return "nothing of the software cancels: a profile has multipliers of one";
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return "errors of the software cancel: one program is assumed to run on both";
}

}  // namespace

std::string machine_lines(const std::vector<Row>& rows, const std::vector<std::size_t>& options) {
  constexpr std::size_t most = 3;
  if (std::count_if(rows.begin(), rows.end(), is_baseline) != 1) return "";
  const Row& baseline = *std::find_if(rows.begin(), rows.end(), is_baseline);
  std::vector<std::string> lines;
  for (const Row& row : rows) {
    const bool is_compared = number(row, "speed_over_baseline") > 0;
    if (!is_compared || machine_of(row) == machine_of(baseline)) continue;
    const std::vector<std::size_t> differing = differences(row, baseline, options);
    const auto of_machine = std::count_if(rows.begin(), rows.end(), [&](const Row& other) {
      return machine_of(other) == machine_of(row);
    });
    const std::optional<std::string> cancelled = cancels(row, baseline);
    if (!cancelled || (!differing.empty() && of_machine > 1)) continue;
    lines.push_back(fmt::format("{} is {:.2f} times as fast as {}, {:.2f} to {:.2f} (90 %); {}\n",
                                text_with(row, differing), number(row, "speed_over_baseline"),
                                text_with(baseline, differing),
                                number(row, "speed_over_baseline_p05"),
                                number(row, "speed_over_baseline_p95"), *cancelled));
  }
  return lines.size() > most ? "" : fmt::format("{}", fmt::join(lines, ""));
}

}  // namespace moesim::report
