#include "sim/scenario/environment.hpp"

#include <fmt/format.h>

#include "sim/base/check_range.hpp"
#include "sim/base/error.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {
namespace {

void check_numbers(const char* flag, const GpuFactors& factors, int gpus) {
  for (const GpuFactor& slow : factors) {
    check_range(flag, slow.factor, 1, engine::Slowdowns::most);
    if (slow.gpu >= 0 && slow.gpu < gpus) continue;
    throw UsageError(
        fmt::format("{}: there is no GPU {}: --gpus {} are numbered from 0", flag, slow.gpu, gpus));
  }
}

bool has_uneven_exchange(const Scenario& scenario) {
  return scenario.has_moe() && !scenario.router.pads_exchange();
}

}  // namespace

void check_slow_gpus(const Scenario& scenario, Use use) {
  if (use == Use::step) {
    check_numbers("--slow-gpu", scenario.conditions.slow_gpus, scenario.gpus);
  }
}

void check_slow_links(const Scenario& scenario, Use use) {
  if (use == Use::step) {
    check_numbers("--slow-link", scenario.conditions.slow_links, scenario.gpus);
  }
}

// Only where they apply: a default must not refuse a step that has uneven exchanges, or flows.
void use_slowdowns_of_profile(Resolution& at) {
  Scenario& scenario = at.scenario;
  const auto& measured = scenario.profile->overlap();
  if (!measured || has_uneven_exchange(scenario) || scenario.network == Network::flows) return;
  scenario.conditions.slowdowns = {measured->compute, measured->exchange};
}

void check_slowdowns(const Scenario& scenario, Use use) {
  if (use == Use::routing) return;
  const engine::Slowdowns& slowdowns = scenario.conditions.slowdowns;
  check_range("--overlap-slowdown", slowdowns.compute, 1, engine::Slowdowns::most);
  check_range("--overlap-slowdown", slowdowns.exchange, 1, engine::Slowdowns::most);
  if (slowdowns.none()) return;
  if (scenario.network == Network::flows) {
    throw UsageError(
        "--overlap-slowdown: exact flows do not slow down for compute; use --network fast");
  }
  if (has_uneven_exchange(scenario)) {
    throw UsageError(fmt::format(
        "--overlap-slowdown: only exchanges of equal blocks slow down beside compute, and router "
        "{} sends uneven ones: leave it out",
        scenario.router.asked_name()));
  }
}

}  // namespace moesim::scenario
