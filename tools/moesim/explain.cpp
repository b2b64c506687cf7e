#include <nlohmann/json.hpp>
#include <optional>

#include "sim/base/formats/json_text.hpp"
#include "sim/report/explanation.hpp"
#include "sim/study/explain/explanation.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/scenario/evaluate_scenario.hpp"
#include "tools/moesim/train/measured_step.hpp"

namespace moesim::tool {
namespace {

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  if (format == report::Format::csv) {
    throw UsageError("--format: explain has no CSV: use table or json");
  }
  const int jobs = chosen_jobs(line);
  const Output out(line.get("out"));
  const std::optional<study::Measured> given = requested_measured(line);
  if (!given) {
    throw UsageError(
        "explain: what was measured? Give --measured 812ms, or traces of torch.profiler (.json, "
        ".json.gz), one per rank");
  }
  const study::Measured& seen = *given;
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = scenario::resolve(line.scenario(), documents);
  check_measured_gpus(seen, scenario.gpus);
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
          "collective they are, by record_function and nn.Module ranges, by names.\n"
          "Training steps of any layout: moesim train --measured."};
}

}  // namespace moesim::tool
