#include "tools/moesim/scenario/evaluate_scenario.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <vector>

#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/step/step_model.hpp"
#include "sim/study/memory_hints.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/scenario/prefetch.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"

namespace moesim::tool {

void note_scenario(const CommandLine& line, const scenario::Scenario& scenario) {
  const scenario::Scenario* const only = &scenario;
  note_idle_options(line.asked_scenario(), {&only, 1}, scenario::Asker::step);
  note_scores(line.scenario(), {&only, 1});
  note_small_capacity(line.scenario(), {&only, 1});
  note_trained_routers({&only, 1});
  note_equal_weights({&only, 1});
  note_left_out(*scenario.model, scenario.model_name);
  if (scenario.model->window) {
    note(
        fmt::format("note: {}: layers with a window are priced as if they attended to the whole "
                    "sequence, model FLOPs count the window; moesim train prices it",
                    scenario.model_name));
  }
  check_routing_fits(scenario);
  note_costly_routing(scenario);
  note_costly_flows(scenario);
}

study::Outcome evaluate_scenario(const scenario::Scenario& scenario, int jobs,
                                 engine::Timeline* timeline) {
  const step::StepModel priced(scenario);
  // Room for every replica of a large job: one dropped would be routed again.
  routing::RoutingCache cache(std::size_t{4} << 30);
  if (scenario.has_moe()) {
    const routing::RoutingJob job = scenario.routing_job();
    prefetch_routing({&job, 1}, scenario.replicas, jobs, cache);
  }
  return study::evaluate(scenario, cache, timeline);
}

// "would fit: --zero 1 (70 GiB), or --micro-batch 4 --global-batch 256 (66 GiB)"
std::string memory_hint_text(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  std::vector<std::string> enough;
  std::vector<std::string> helpful;
  for (const study::MemoryHint& hint : study::memory_hints(scenario, outcome)) {
    const std::string batch =
        hint.global_batch ? fmt::format(" --global-batch {}", *hint.global_batch) : "";
    const std::string before = hint.before.empty() ? "" : hint.before + " ";
    (hint.fits ? enough : helpful)
        .push_back(fmt::format("{}--{} {}{} ({:.0f} GiB)", before, hint.option, hint.value, batch,
                               hint.need.gib()));
  }
  if (!enough.empty()) return fmt::format("would fit: {}", fmt::join(enough, ", or "));
  if (helpful.empty()) return "no option helps: use more GPUs";
  return fmt::format("no option alone is enough; these help: {}", fmt::join(helpful, ", "));
}

}  // namespace moesim::tool
