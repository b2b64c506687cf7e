#pragma once

#include <functional>

#include "sim/training/step/training_step.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// How often a step is drawn: --replicas of the line, 1 without. Throws UsageError.
int requested_replicas(const CommandLine& line);

// The step with the median time of so many replicas of a job, the lower of two; each replica has
// the next seed, and the losses are the means over all. One step where no routing is drawn.
training::TrainingStep median_of_replicas(
    training::TrainingJob& job, int replicas,
    const std::function<training::TrainingStep(training::TrainingJob& job)>& step);

}  // namespace moesim::tool
