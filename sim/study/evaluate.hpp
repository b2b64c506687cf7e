#pragma once

#include "sim/step/step_model.hpp"
#include "sim/study/outcome.hpp"

namespace moesim::study {

// As evaluate() of outcome.hpp, with every prediction of a kernel class multiplied by the
// calibration's factor for it: for studies of software slower than the profiled kernels.
Outcome evaluate(const step::Scenario& scenario, const step::Calibration& calibration,
                 routing::RoutingCache& cache, engine::Timeline* timeline = nullptr);

}  // namespace moesim::study
