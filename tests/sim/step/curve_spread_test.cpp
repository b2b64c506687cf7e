#include "sim/step/curve_spread.hpp"

#include <cmath>
#include <vector>

#include "sim/step/step_runner.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

struct Moments {
  double mean_ms = 0;
  double variance = 0;  // of the log
};

Moments moments_of(const std::vector<double>& steps_ms) {
  const auto count = static_cast<double>(steps_ms.size());
  Moments found;
  double log_mean = 0;
  for (const double step : steps_ms) {
    found.mean_ms += step / count;
    log_mean += std::log(step) / count;
  }
  for (const double step : steps_ms) {
    found.variance += (std::log(step) - log_mean) * (std::log(step) - log_mean) / count;
  }
  return found;
}

}  // namespace

TEST_CASE("the spread by errors of curves is that of steps that were simulated with them") {
  constexpr int draws = 1000;
  for (const scenario::Mode mode : {scenario::Mode::prefill, scenario::Mode::train}) {
    scenario::Scenario scenario = support::small_prefill();
    scenario.mode = mode;
    scenario.replicas = draws;
    const routing::ReplicaRouting routing = support::equal_rows(scenario, 128);
    StepModel model(scenario);
    StepRunner runner(model);
    std::vector<double> steps_ms;
    std::vector<CurveSpread> told;
    for (int replica = 0; replica < draws; ++replica) {
      const engine::Execution execution = runner.run(&routing, 0, replica);
      steps_ms.push_back(execution.end_of(execution.slowest_rank()).ms());
      if (replica % 100 == 0) {
        told.push_back(curve_spread(model, execution, &routing, replica));
      }
    }
    const Moments simulated = moments_of(steps_ms);
    for (const CurveSpread& spread : told) {
      CAPTURE(simulated.mean_ms, spread.mean_ms, simulated.variance, spread.variance);
      // Whatever errors the execution had that it was told from.
      CHECK(spread.mean_ms == Approx(simulated.mean_ms).epsilon(0.005));
      CHECK(std::sqrt(spread.variance) == Approx(std::sqrt(simulated.variance)).epsilon(0.1));
    }
  }
}

}  // namespace moesim::step
