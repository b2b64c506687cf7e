#include "tools/moesim/evaluate_scenario.hpp"

#include <cstddef>

#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/step/step_model.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/prefetch.hpp"

namespace moesim::tool {

void note_scenario(const CommandLine& line, const scenario::Scenario& scenario) {
  const scenario::Scenario* const only = &scenario;
  note_idle_options(line.scenario(), {&only, 1}, scenario::Asker::step);
  note_trace(line.scenario(), scenario);
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

}  // namespace moesim::tool
