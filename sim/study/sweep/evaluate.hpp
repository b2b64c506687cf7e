#pragma once

#include "sim/step/step_model.hpp"
#include "sim/study/sweep/outcome.hpp"

namespace moesim::study {

struct EvaluateSettings {
  // Multiplies the predictions of each kernel class: for software slower than the profiled kernels.
  step::Calibration calibration;
  // Off: replicas differ by their routing alone, every curve is taken at its median.
  bool curve_errors = true;
  engine::Timeline* timeline = nullptr;  // receives the bars of the median replica
};

// As evaluate() of outcome.hpp, with more to set. Throws UsageError for multipliers outside 0 to
// 1e6.
Outcome evaluate(const scenario::Scenario& scenario, const EvaluateSettings& settings,
                 routing::RoutingCache& cache);

}  // namespace moesim::study
