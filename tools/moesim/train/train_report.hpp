#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/report/formats.hpp"
#include "sim/training/step/training_step.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// The row of a step that a command line asks for, as CSV and JSON have it.
using RowOf = std::function<NamedCells(const CommandLine& line, const training::TrainingJob& job,
                                       const training::TrainingStep& step, const TrainBand& band)>;

// table: for people; csv: one row; json: the same, with the memory of every pipeline rank.
std::string rendered_training(const CommandLine& line, const training::TrainingJob& job,
                              const training::TrainingStep& step, const TrainBand& band,
                              report::Format format, const RowOf& row);

// A row. Its columns depend on what the step has: routing figures only with drawn routing.
NamedCells training_row(const training::TrainingJob& job, const training::TrainingStep& step,
                        const TrainBand& band);

// The same but for the columns of its band and its warnings.
NamedCells training_row(const training::TrainingJob& job, const training::TrainingStep& step);
// These columns alone, and that of warnings.
std::vector<std::string> training_columns(const training::TrainingJob& job,
                                          const training::TrainingStep& step);
// Its name; the dense FFN of dense layers and the shared experts of MoE layers are one part.
std::string part_label(const training::TrainingJob& job, training::TrainingPart part);
// "84 recorded steps", "16 of 84 recorded steps, evenly spread", of one alone "step 3 of 84".
// `taken`: numbered from 1 on.
std::string taken_steps_text(const std::vector<int>& taken, int recorded);

}  // namespace moesim::tool
