#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "sim/base/file.hpp"
#include "sim/report/chrome_trace.hpp"
#include "sim/report/summary.hpp"
#include "sim/step/memory.hpp"
#include "sim/step/step_model.hpp"
#include "sim/study/sweep/outcome.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/prefetch.hpp"

namespace moesim::tool {
namespace {

std::string rendered(const scenario::Scenario& scenario, const study::Outcome& outcome,
                     report::Format format) {
  if (format == report::Format::table) return report::simulate_summary(scenario, outcome);
  const study::Row row = report::result_row(scenario, outcome);
  if (format == report::Format::csv) return report::to_csv(report::result_columns(), {row});
  nlohmann::ordered_json object = report::to_json(report::result_columns(), row);
  object["detail"] = report::outcome_detail(outcome);
  return object.dump(2) + "\n";
}

// What would make the step need less memory, and how much it would then need.
std::string memory_hints(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  struct Change {
    std::string flag;
    scenario::Scenario scenario;
  };
  std::vector<Change> changes;
  const auto propose = [&](const std::string& flag, const auto& edit) {
    changes.push_back({flag, scenario});
    edit(changes.back().scenario);
  };
  const bool train = scenario.mode == scenario::Mode::train;
  if (train && scenario.checkpointing == scenario::Checkpointing::none) {
    propose("--checkpointing full",
            [](scenario::Scenario& each) { each.checkpointing = scenario::Checkpointing::full; });
  }
  for (int zero = scenario.zero + 1; train && zero <= 3; ++zero) {
    propose(fmt::format("--zero {}", zero), [&](scenario::Scenario& each) { each.zero = zero; });
  }
  for (int size = 2 * scenario.expert_parallel;
       scenario.has_moe() && size <= std::min(scenario.gpus, scenario.experts); size *= 2) {
    if (scenario.gpus % size != 0 || scenario.experts % size != 0) continue;
    propose(fmt::format("--expert-parallel {}", size),
            [&](scenario::Scenario& each) { each.expert_parallel = size; });
  }
  for (std::int64_t batch = scenario.micro_batch / 2; batch > 0; batch /= 2) {
    propose(fmt::format("--micro-batch {}", batch), [&](scenario::Scenario& each) {
      each.micro_batch = batch;
      each.tokens_per_gpu = batch * each.sequence_length;
    });
  }
  // Fewer tokens are routed to as many rows each.
  const auto rows_of = [&](std::int64_t tokens) {
    const auto share = [&](std::int64_t rows) { return rows * tokens / scenario.tokens_per_gpu; };
    return model::ExchangeRows{share(outcome.rows.mean), share(outcome.rows.most),
                               share(outcome.rows.sent), share(outcome.rows.block)};
  };
  std::vector<std::string> enough;
  std::vector<std::string> helpful;
  for (const Change& change : changes) {
    const Bytes need = step::memory_footprint(change.scenario, outcome.ir_rows_mean,
                                              rows_of(change.scenario.tokens_per_gpu))
                           .total();
    if (need.gib() > 0.98 * outcome.memory_gib) continue;
    const bool fits = need <= scenario.profile->device().hbm_bytes;
    (fits ? enough : helpful).push_back(fmt::format("{} ({:.0f} GiB)", change.flag, need.gib()));
  }
  if (!enough.empty()) return fmt::format("would fit: {}", fmt::join(enough, ", or "));
  if (helpful.empty()) return "no option helps: use more GPUs";
  return fmt::format("no option alone is enough; these help: {}", fmt::join(helpful, ", "));
}

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  const int jobs = chosen_jobs(line);
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = scenario::resolve(line.scenario(), documents);
  const scenario::Scenario* const only = &scenario;
  note_idle_options(line.scenario(), {&only, 1}, scenario::Asker::step);
  note_repeated_trace(scenario);
  if (scenario.has_moe() && !line.has("expert-parallel") && scenario.expert_parallel == 1 &&
      scenario.gpus > 1) {
    note(fmt::format(
        "note: every GPU holds all {} experts: no larger --expert-parallel divides both {} "
        "experts and {} GPUs",
        scenario.experts, scenario.experts, scenario.gpus));
  }
  const Output out(line.get("out"));
  const std::string timeline_path = line.get("timeline");
  if (!timeline_path.empty()) check_writable(timeline_path);

  // Room for every replica of a large job: one dropped would be routed again.
  // Refuses what the profile cannot price before the routing, which may take long.
  const step::StepModel priced(scenario);
  routing::RoutingCache cache(std::size_t{4} << 30);
  if (scenario.has_moe()) {
    const routing::RoutingJob job = scenario.routing_job();
    prefetch_routing({&job, 1}, scenario.replicas, jobs, cache);
  }
  engine::Timeline timeline;
  const study::Outcome outcome =
      study::evaluate(scenario, cache, timeline_path.empty() ? nullptr : &timeline);
  if (!timeline_path.empty()) {
    write_file_atomically(
        timeline_path,
        report::chrome_trace(
            timeline, fmt::format("moesim {} {}", scenario.model_name, scenario.router.name())));
    note(fmt::format("timeline of the median replica: {} (open it in ui.perfetto.dev)",
                     timeline_path));
  }
  if (!outcome.fits_memory) {
    note(fmt::format("warning: {:.1f} GiB per GPU do not fit the {:.0f} GiB of {}; {}",
                     outcome.memory_gib, scenario.profile->device().hbm_bytes.gib(),
                     scenario.profile_name, memory_hints(scenario, outcome)));
  }
  out.write(rendered(scenario, outcome, format));
  return ExitCode::ok;
}

}  // namespace

Command simulate_command() {
  return {"simulate",
          "one scenario: step time, breakdown, token loss, memory, timeline",
          "[options]",
          "moesim simulate --router top2+fr+ir --capacity-factor 1 --mode prefill",
          {format_flag(),
           out_flag(),
           {"timeline", "FILE", "none", "Chrome trace of the median replica, all GPUs"},
           jobs_flag()},
          true,
          0,
          run};
}

}  // namespace moesim::tool
