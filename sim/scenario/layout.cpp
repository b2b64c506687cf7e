#include "sim/scenario/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/expert_split.hpp"
#include "sim/scenario/expert_placements.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

// A trace of one rank says what each GPU routes, not how many there are.
void use_usual_gpus(Resolution& at) {
  const routing::TraceShape* const recorded = at.scenario.recorded();
  at.scenario.gpus = recorded != nullptr && recorded->ranks > 1 ? recorded->ranks : Layout{}.gpus;
}

void use_usual_experts(Resolution& at) {
  Scenario& scenario = at.scenario;
  if (scenario.recorded() != nullptr) {
    scenario.experts = scenario.recorded()->experts;
  } else if (scenario.model->moe) {
    scenario.experts = scenario.model->moe->experts;
  }
}

void settle_experts(Resolution& at) {
  Scenario& scenario = at.scenario;
  if (scenario.router.is_dense()) {
    scenario.experts = 1;
  } else if (!scenario.model->moe) {
    throw UsageError(fmt::format(
        "--router: model {} has no MoE layers for {} to route: use --router dense or a model with "
        "experts",
        scenario.model_name, scenario.router.asked_name()));
  }
}

// The largest P that divides both the experts and the GPUs, at most one node. Recorded counts per
// receiving GPU are of one expert on each.
void use_usual_expert_parallel(Resolution& at) {
  Scenario& scenario = at.scenario;
  scenario.expert_parallel = 1;
  const routing::Trace* const trace = scenario.scores.trace.get();
  if (trace != nullptr && trace->per() == routing::Trace::Per::rank) {
    scenario.expert_parallel = trace->shape().experts;
    return;
  }
  const int most = std::min({scenario.experts, scenario.gpus, scenario.cluster->gpus_per_node});
  for (int size = 1; size <= most; ++size) {
    if (scenario.experts % size == 0 && scenario.gpus % size == 0) scenario.expert_parallel = size;
  }
}

void group_dense_gpus(Resolution& at) {
  if (at.scenario.router.is_dense()) at.scenario.expert_parallel = 1;
}

void check_groups(const Scenario& scenario, Use) {
  if (!has_experts(scenario)) return;
  const int experts = scenario.experts;
  const int ranks = scenario.expert_parallel;
  check_experts_divide(experts, ranks, scenario.gpus);
  if (scenario.gpus % ranks != 0) {
    throw UsageError(fmt::format(
        "--gpus: {} GPUs are no whole number of expert-parallel groups of {}: use a multiple of "
        "{}, or --expert-parallel {}",
        scenario.gpus, ranks, ranks, divisors(std::gcd(experts, scenario.gpus), scenario.gpus)));
  }
}

void check_expert_placement_text(const std::string& text, DocumentCache&) {
  check_expert_placement(text);
}

void set_expert_placement(const std::string& text, Resolution& at) {
  Scenario& scenario = at.scenario;
  scenario.expert_placement = text;
  scenario.order = scenario.router.is_dense()
                       ? nullptr
                       : parse_expert_placement(text, scenario.experts, scenario.expert_parallel);
}

std::string expert_placement_of(const Scenario& scenario) { return scenario.expert_placement; }

std::uint64_t expert_placement_contents(const Scenario& scenario) {
  return scenario.order == nullptr ? 0 : scenario.order->digest();
}

}  // namespace moesim::scenario
