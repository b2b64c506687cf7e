#include "tools/moesim/train/measured_step.hpp"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"

namespace moesim::tool {
namespace {

bool is_trace(std::string_view name) {
  return name.ends_with(".json") || name.ends_with(".json.gz");
}

// "812ms", "1.25 s", "950us", in milliseconds.
double parse_milliseconds(std::string_view text, const std::string& what) {
  static constexpr std::array<std::pair<std::string_view, double>, 3> units{
      {{"us", 1e-3}, {"ms", 1}, {"s", 1e3}}};
  constexpr double most_ms = 1e9;
  for (const auto& [name, factor] : units) {
    if (!text.ends_with(name)) continue;
    std::string_view number = text.substr(0, text.size() - name.size());
    while (number.ends_with(' ')) number.remove_suffix(1);
    const std::optional<double> value = parse_number<double>(number);
    if (!value) continue;  // "812ms" ends in "s" too
    const double time = *value * factor;
    if (time > 0 && time <= most_ms) return time;
    throw UsageError(fmt::format("{}: '{}' is no time of a step: more than 0, at most {:.0f} s",
                                 what, text, most_ms / 1e3));
  }
  throw UsageError(fmt::format(
      "{}: '{}' is no time: give a number with its unit, us, ms or s, for example 812ms", what,
      text));
}

}  // namespace

std::optional<study::Measured> requested_measured(const CommandLine& line) {
  study::Measured result;
  std::vector<std::string> files = line.positionals;
  if (line.has("measured")) {
    const std::string given = line.get("measured");
    if (is_trace(given)) {
      for (const std::string_view file : split(given, ',')) files.emplace_back(file);
    } else {
      result.step_ms = parse_milliseconds(given, "--measured");
    }
  }
  for (const std::string& file : files) {
    if (is_trace(file)) continue;
    throw UsageError(fmt::format(
        "{}: no trace of torch.profiler (.json, .json.gz); a time is --measured 812ms", file));
  }
  if (!files.empty()) result.trace = study::read_traced_step(files);
  if (!result.step_ms && !result.trace) return std::nullopt;
  return result;
}

void check_measured_gpus(const study::Measured& measured, int gpus) {
  if (!measured.trace || measured.trace->gpus <= static_cast<std::size_t>(gpus)) return;
  throw UsageError(fmt::format(
      "{}: the traces are of {} GPUs, the job has {}: give the traces of its GPUs alone, or --gpus",
      measured.trace->file, measured.trace->gpus, gpus));
}

}  // namespace moesim::tool
