#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/formats/json_text.hpp"
#include "sim/report/summary.hpp"
#include "sim/study/sweep/efficiency.hpp"
#include "sim/study/sweep/outcome.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/timeline.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/scenario/auxiliary_losses.hpp"
#include "tools/moesim/scenario/evaluate_scenario.hpp"
#include "tools/moesim/train/layout_scenario.hpp"

namespace moesim::tool {
namespace {

std::string rendered(const scenario::Scenario& scenario, const study::Outcome& outcome,
                     report::Format format, const nlohmann::ordered_json& losses) {
  if (format == report::Format::table) {
    return report::simulate_summary(scenario, outcome) +
           (losses.is_null() ? "" : auxiliary_lines(losses));
  }
  const std::vector<std::string> columns = study::names_of(study::result_columns());
  const study::Row row = study::result_row(scenario, outcome);
  if (format == report::Format::csv) return report::to_csv(columns, {row});
  nlohmann::ordered_json object = report::to_json(columns, row);
  object["detail"] = report::outcome_detail(outcome);
  if (!losses.is_null()) object["detail"]["auxiliary_losses"] = losses;
  return json_text(object, 2) + "\n";
}

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  const int jobs = chosen_jobs(line);
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = scenario::resolve(line.scenario(), documents);
  note_scenario(line, scenario);
  if (scenario.has_moe() && !line.has("expert-parallel") && scenario.expert_parallel == 1 &&
      scenario.gpus > 1) {
    note(fmt::format(
        "note: every GPU holds all {} experts: no larger --expert-parallel divides both {} "
        "experts and {} GPUs",
        scenario.experts, scenario.experts, scenario.gpus));
  }
  if (line.has("losses")) {
    if (!scenario.has_moe()) throw UsageError("--losses: a dense model has no router");
    if (format == report::Format::csv) {
      throw UsageError("--losses: a CSV has no columns for them: use --format table or json");
    }
  }
  const Output out(line.get("out"));
  const TimelineFiles files(line, scenario.gpus);

  engine::Timeline timeline;
  const study::Outcome outcome =
      evaluate_scenario(scenario, jobs, files.wanted() ? &timeline : nullptr);
  if (files.wanted()) {
    files.write(timeline, fmt::format("moesim {} {}", scenario.model_name, scenario.router.name()),
                "the median replica");
  }
  if (const double mfu = study::efficiency(scenario, outcome).mfu; mfu > 1) {
    note(fmt::format(
        "note: an MFU of {:.1f} % is no error: {}; a GPU computes fewer than {} experts per token",
        100 * mfu, mfu_counts_dropped, scenario.router.top_k));
  }
  nlohmann::ordered_json losses;
  if (line.has("losses")) losses = auxiliary_detail(scenario, jobs);
  write_row_keeping(out, rendered(scenario, outcome, format, losses), format,
                    sweep_option_columns());
  // Behind the text, which ends with what would fit then.
  if (!outcome.fits_memory) {
    note(fmt::format("warning: {:.1f} GiB per GPU do not fit the {:.0f} GiB of {}; {}",
                     outcome.memory_gib, scenario.profile->device().hbm_bytes.gib(),
                     scenario.profile_name, memory_hint_text(scenario, outcome)));
  }
  return ExitCode::ok;
}

}  // namespace

Command simulate_command() {
  return {"simulate",
          "one scenario: step time, breakdown, token loss, memory, timeline",
          "[options]",
          "moesim simulate --router top2+fr+ir --capacity-factor 1 --mode prefill",
          {format_flag(), out_flag(), timeline_flag("the median replica"), timeline_gpus_flag(),
           losses_flag(), jobs_flag(), config_flag(), from_flag()},
          true,
          0,
          run,
          layout_help};
}

}  // namespace moesim::tool
