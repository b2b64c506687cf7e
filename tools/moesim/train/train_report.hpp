#pragma once

#include <string>
#include <vector>

#include "sim/report/formats.hpp"
#include "sim/training/training_step.hpp"
#include "tools/moesim/bands/train_band.hpp"

namespace moesim::tool {

// table: for people; csv: one row; json: the same, with the memory of every pipeline rank.
std::string rendered_training(const training::TrainingJob& job, const training::TrainingStep& step,
                              const TrainBand& band, report::Format format);

// The columns of a row, but for those of its band.
std::vector<std::string> training_columns(const training::TrainingJob& job,
                                          const training::TrainingStep& step);
std::string timeline_title(const training::TrainingJob& job);

}  // namespace moesim::tool
