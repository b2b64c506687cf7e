#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/json_text.hpp"
#include "sim/base/text.hpp"
#include "sim/report/explanation.hpp"
#include "sim/study/explain/explanation.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/config.hpp"
#include "tools/moesim/evaluate_scenario.hpp"
#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

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

study::Measured measured(const CommandLine& line) {
  study::Measured result;
  std::vector<std::string> files = line.positionals;
  if (line.has("measured")) {
    const std::string given = line.get("measured");
    if (given.ends_with(".json") || given.ends_with(".json.gz")) {
      files.push_back(given);
    } else {
      result.step_ms = parse_milliseconds(given, "--measured");
    }
  }
  for (const std::string& file : files) {
    if (file.ends_with(".json") || file.ends_with(".json.gz")) continue;
    throw UsageError(fmt::format(
        "{}: no trace of torch.profiler (.json, .json.gz); a time is --measured 812ms", file));
  }
  if (!files.empty()) result.trace = study::read_measured_step(files);
  if (!result.step_ms && !result.trace) {
    throw UsageError(
        "explain: what was measured? Give --measured 812ms, or traces of torch.profiler (.json, "
        ".json.gz), one per rank");
  }
  return result;
}

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  if (format == report::Format::csv) {
    throw UsageError("--format: explain has no CSV: use table or json");
  }
  const int jobs = chosen_jobs(line);
  const Output out(line.get("out"));
  const study::Measured seen = measured(line);
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = scenario::resolve(line.scenario(), documents);
  note_scenario(line, scenario);
  engine::Timeline timeline;
  const study::Outcome outcome =
      evaluate_scenario(scenario, jobs, seen.trace ? &timeline : nullptr);
  const study::Explanation explanation = study::explain(scenario, outcome, timeline, seen);
  out.write(format == report::Format::json
                ? json_text(report::explanation_json(explanation, seen), 2) + "\n"
                : report::explanation_text(scenario, explanation, seen));
  return ExitCode::ok;
}

}  // namespace

Command explain_command() {
  return {"explain",
          "a measured step beside the expected: what differs, what is suspect",
          "[TRACE...] [--measured TIME] [options]",
          "moesim explain --measured 812ms --router top2 --mode prefill",
          {{"measured", "TIME", "that of the traces", "of a step, as 812ms, 1.25s, 950us"},
           format_flag(),
           out_flag(),
           jobs_flag(),
           config_flag(),
           from_flag()},
          true,
          100000,
          run,
          "TRACE: what torch.profiler writes (Kineto: .json, .json.gz), one per rank; of\n"
          "several GPUs the slowest counts. Kernels count to simulate's parts, by the\n"
          "collective they are, by record_function and nn.Module ranges, by names."};
}

}  // namespace moesim::tool
