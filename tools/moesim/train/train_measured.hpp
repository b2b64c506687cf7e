#pragma once

#include <string>

#include "sim/study/explain/explanation.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"
#include "tools/moesim/bands/train_band.hpp"

namespace moesim::tool {

// A measured step beside the expected one: the ratio, the narrowest band that it lies inside, and
// of traces the exposed time of each part. Parts that kernels do not tell apart are one row:
// kernels of recomputation have the names of what is computed again, receives of a pipeline those
// of the exchange of experts.
std::string measured_text(const training::TrainingJob& job, const training::TrainingStep& step,
                          const TrainBand& band, const study::Measured& measured);

}  // namespace moesim::tool
