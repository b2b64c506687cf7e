#include "sim/study/calibration/scenario_fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>

#include "sim/step/kernels/kernel_class.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/sweep/step_band.hpp"
#include "sim/uncertainty/bands/fitted_software.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::study {
namespace {

using step::KernelClass;
using uncertainty::StepClasses;
using uncertainty::Unknown;

constexpr int most_rounds = 8;
constexpr double settled = 1e-4;  // of the log of a factor

// Factors on all of a step, and on its exchanges beyond that.
struct Factors {
  double level = 1;
  double exchange = 1;
};

Factors factors_of(const uncertainty::StepFit& fit) {
  return {std::exp(fit.unknowns[at(Unknown::level)]),
          std::exp(fit.unknowns[at(Unknown::exchange)])};
}

double multiplier(KernelClass kind, const Factors& factors) {
  return kind == KernelClass::exchange ? factors.level * factors.exchange : factors.level;
}

// A step simulated with these factors, by what they act on, without them: where exchanges hide
// behind computation that is exact at these factors alone.
struct Simulated {
  StepClasses classes;
  uncertainty::WorkShares shares{};
};
Simulated simulated_at(const scenario::Scenario& scenario, const Factors& factors,
                       routing::RoutingCache& cache) {
  EvaluateSettings settings;
  for (std::size_t kind = 0; kind < step::kernel_class_count; ++kind) {
    settings.calibration.multiplier[kind] = multiplier(static_cast<KernelClass>(kind), factors);
  }
  const Outcome outcome = evaluate(scenario, settings, cache);
  const double exchanges =
      outcome.parts_ms[static_cast<std::size_t>(step::StepPart::exposed_exchange)] +
      outcome.parts_ms[static_cast<std::size_t>(step::StepPart::gradient)];
  Simulated found;
  found.classes.exchange = exchanges / (factors.level * factors.exchange);
  found.classes.compute = (outcome.step_ms - exchanges) / factors.level;
  found.shares = work_shares(scenario, outcome.parts_ms);
  return found;
}

}  // namespace

uncertainty::SoftwarePrior scenario_prior(const std::vector<MeasuredScenario>& rows) {
  std::vector<uncertainty::SoftwarePrior> priors;
  for (const MeasuredScenario& row : rows) {
    const uncertainty::SoftwareError known = software_error(row.scenario, {});
    uncertainty::SoftwarePrior& prior = priors.emplace_back();
    prior.mean[at(Unknown::level)] = known.mean;
    prior.deviation[at(Unknown::level)] = known.factor * known.deviation;
    prior.deviation[at(Unknown::exchange)] = uncertainty::exchange_deviation;
    prior.scatter[static_cast<std::size_t>(uncertainty::RowKind::step)] =
        known.scatter / known.factor;
  }
  return uncertainty::mixture_of(priors);
}

ScenarioFit fit_scenarios(const std::vector<MeasuredScenario>& rows,
                          const std::vector<Unknown>& free, const uncertainty::SoftwarePrior& prior,
                          routing::RoutingCache& cache) {
  ScenarioFit result;
  Factors simulated;
  for (int round = 0; round < most_rounds; ++round) {
    result.rows.clear();
    result.calibrated_ms.clear();
    result.shares = {};
    for (const MeasuredScenario& row : rows) {
      const auto [classes, shares] = simulated_at(row.scenario, simulated, cache);
      for (std::size_t work = 0; work < shares.size(); ++work) {
        result.shares[work] += shares[work] / static_cast<double>(rows.size());
      }
      result.rows.push_back({classes, row.measured_ms});
      result.calibrated_ms.push_back(simulated.level *
                                     (classes.compute + simulated.exchange * classes.exchange));
    }
    if (round == 0) result.free = free.empty() ? carried_by(result.rows, prior) : free;
    result.fit = uncertainty::fit_steps(result.rows, result.free, prior);
    const Factors fitted = factors_of(result.fit);
    const double moved = std::max(std::abs(std::log(fitted.level / simulated.level)),
                                  std::abs(std::log(fitted.exchange / simulated.exchange)));
    if (moved < settled) break;
    simulated = fitted;
  }
  result.left_out = uncertainty::left_out_errors(result.rows, result.free, prior);
  return result;
}

profile::SoftwareDocument software_document(const std::string& name, const std::string& profile,
                                            const std::string& source,
                                            const std::vector<MeasuredScenario>& rows,
                                            const ScenarioFit& fit) {
  const Factors factors = factors_of(fit.fit);
  profile::SoftwareDocument software;
  software.name = name;
  software.profile = profile;
  software.source = source;
  for (std::size_t place = 0; place < step::kernel_class_count; ++place) {
    const auto kind = static_cast<KernelClass>(place);
    software.multipliers[step::name_of(kind)] = multiplier(kind, factors);
  }
  software.fit = uncertainty::summary_of(fit.fit, fit.free, fit.shares, fit.left_out);
  software.fit->machine = rows.front().scenario.profile->device().name;
  std::set<std::string> models;
  std::set<std::string> clusters;
  for (const MeasuredScenario& row : rows) {
    models.insert(row.scenario.model->name);
    clusters.insert(row.scenario.cluster->name);
  }
  software.fit->models = {models.begin(), models.end()};
  software.fit->clusters = {clusters.begin(), clusters.end()};
  return software;
}

}  // namespace moesim::study
