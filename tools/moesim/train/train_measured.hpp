#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/study/explain/explanation.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"
#include "tools/moesim/bands/train_band.hpp"

namespace moesim::tool {

// A measured step beside the expected one: the ratio, the narrowest band that it lies inside, and
// of traces the exposed time of each part. Parts that kernels do not tell apart are one row:
// kernels of recomputation have the names of what is computed again, receives of a pipeline those
// of the exchange of experts; with grouped products that are not recomputed experts stay apart.
// Last, of the part that differs most, what may be the matter and what narrows it.
std::string measured_text(const training::TrainingJob& job, const training::TrainingStep& step,
                          const TrainBand& band, const study::Measured& measured);

// The same for programs: measured_ms, expected_ms, multiplier, band_level (null: outside of all),
// of traces also parts, any_part_share and unknown_share (of 1), and the largest difference, if it
// is 1 % of the step or more.
nlohmann::ordered_json measured_json(const training::TrainingJob& job,
                                     const training::TrainingStep& step, const TrainBand& band,
                                     const study::Measured& measured);

}  // namespace moesim::tool
