#pragma once

#include <string>
#include <vector>

#include "sim/profile/software_document.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"
#include "sim/uncertainty/software/step_fit.hpp"

namespace moesim::study {

// A measured step or forward pass (of repeats of one their mean), and the scenario of `simulate`
// that it was.
struct MeasuredScenario {
  scenario::Scenario scenario;
  double measured_ms = 0;
};

// What is known of the software of these scenarios before their own steps are: the level and its
// scatter from published steps (software_error(); of several rows their mixture_of()),
// exchanges to 25 % (assumed). Nothing else is in question: a software document has no other
// factors. `rows` must not be empty.
uncertainty::SoftwarePrior scenario_prior(const std::vector<MeasuredScenario>& rows);

// The factors with which the measured steps are most likely.
struct ScenarioFit {
  std::vector<uncertainty::Unknown> free;
  uncertainty::StepFit fit;
  std::vector<uncertainty::MeasuredRow> rows;  // by classes of work, as they are at the fit
  uncertainty::WorkShares shares{};            // their mean
  std::vector<double> calibrated_ms;           // simulated with the factors
  std::vector<double>
      left_out;  // log(measured / predicted) by a fit without the row; empty: of one
};

// Fits `free` (empty: what the rows can carry) and simulates again until the classes of work of the
// rows are those of the fit. The profile of the scenarios must be one of hardware. Throws Error for
// no rows, and as evaluate().
ScenarioFit fit_scenarios(const std::vector<MeasuredScenario>& rows,
                          const std::vector<uncertainty::Unknown>& free,
                          const uncertainty::SoftwarePrior& prior, routing::RoutingCache& cache);

// The document of the fit, for --profile of simulate and sweep; `profile` as it was asked for.
profile::SoftwareDocument software_document(const std::string& name, const std::string& profile,
                                            const std::string& source,
                                            const std::vector<MeasuredScenario>& rows,
                                            const ScenarioFit& fit);

}  // namespace moesim::study
