#pragma once

#include "sim/engine/engine.hpp"
#include "sim/step/step_model.hpp"

namespace moesim::step {

// The step of one routing, over all errors that its curves may have.
struct CurveSpread {
  double mean_ms = 0;
  double variance = 0;  // of its log
};

// Takes an execution with the curve errors of `replica`: these are divided out of what the step
// waited for (engine::critical_path), and each curve's part of that varies as with_error() says,
// independently of the others. What the step waits for is taken to be the same with other errors.
CurveSpread curve_spread(StepModel& model, const engine::Execution& execution,
                         const routing::ReplicaRouting* routing, int replica);

}  // namespace moesim::step
