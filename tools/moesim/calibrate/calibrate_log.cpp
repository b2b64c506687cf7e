#include "tools/moesim/calibrate/calibrate_log.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"

namespace moesim::tool {
namespace {

constexpr std::string_view time_key = "elapsed time per iteration (ms):";
constexpr std::string_view batch_key = "global batch size:";

// What stands after `key`, up to the next '|'; empty: the line has none.
std::string_view value_after(std::string_view line, std::string_view key) {
  const std::size_t place = line.find(key);
  if (place == std::string_view::npos) return {};
  std::string_view value = line.substr(place + key.size());
  value = value.substr(0, value.find('|'));
  const std::size_t first = value.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return value.substr(first, value.find_last_not_of(" \t\r") + 1 - first);
}

}  // namespace

double LoggedSteps::median_ms() const { return median(ms); }

CsvTable LoggedSteps::table(const std::string& time_column) const {
  CsvTable table;
  table.name = name;
  table.columns = {time_column};
  table.rows = {{fmt::format("{}", median_ms())}};
  table.lines = {line};
  if (!global_batch.empty()) {
    table.columns.emplace_back("global_batch");
    table.rows.front().push_back(global_batch);
  }
  return table;
}

std::string LoggedSteps::summary() const {
  return fmt::format(
      "note: {}: a log of Megatron-LM: one step, {:.1f} ms, {}{}; {}its options are those that are "
      "typed",
      name, median_ms(),
      left_out == 0 ? "of its only iteration, which has all the warm-up in it"
                    : fmt::format("the median of {} iteration{} after {} of warm-up", ms.size(),
                                  ms.size() == 1 ? "" : "s", left_out),
      global_batch.empty() ? "" : ", global batch " + global_batch,
      cut_line == 0 ? "" : fmt::format("line {}, cut short, is left out; ", cut_line));
}

std::optional<LoggedSteps> megatron_log(std::string_view text, const std::string& name) {
  if (text.find(time_key) == std::string_view::npos) return std::nullopt;
  LoggedSteps steps;
  steps.name = name;
  std::vector<std::size_t> lines;
  bool ends_in_bar = false;  // as lines that are whole do
  std::size_t line_number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++line_number;
    if (line.find(time_key) == std::string_view::npos) continue;
    const std::size_t last = line.find_last_not_of(" \t\r");
    const bool has_end = line[last] == '|';
    if (!has_end && ends_in_bar) {
      steps.cut_line = line_number;
      continue;
    }
    ends_in_bar = has_end;
    const std::string_view value = value_after(line, time_key);
    const auto time = parse_number<double>(value);
    if (!time || !(*time > 0)) {
      throw UsageError(fmt::format("{}: line {}: expected a time above 0 after '{}', not '{}'",
                                   name, line_number, time_key, value));
    }
    const std::string batch(value_after(line, batch_key));
    if (!lines.empty() && batch != steps.global_batch) {
      throw UsageError(fmt::format(
          "{}: line {}: global batch {} after {}: keep the lines of one, or give both in a CSV",
          name, line_number, batch.empty() ? "none" : batch, steps.global_batch));
    }
    steps.global_batch = batch;
    steps.ms.push_back(*time);
    lines.push_back(line_number);
  }
  const std::size_t count = steps.ms.size();
  steps.left_out = count == 1 ? 0 : std::max<std::size_t>(1, count / 10);
  steps.line = lines[steps.left_out];
  steps.ms.erase(steps.ms.begin(), steps.ms.begin() + static_cast<std::ptrdiff_t>(steps.left_out));
  return steps;
}

}  // namespace moesim::tool
