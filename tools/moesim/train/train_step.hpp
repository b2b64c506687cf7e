#pragma once

#include "tools/moesim/base/command.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {

// training_row(), what `train` writes.
NamedCells row_of_train(const CommandLine& line, const training::TrainingJob& job,
                        const training::TrainingStep& step, const TrainBand& band);

// Predicts the one step of a command line and writes it, with what is to be noted of it and the
// files of --timeline. `row`: what CSV and JSON have.
ExitCode run_train_step(const CommandLine& line, const RowOf& row);

}  // namespace moesim::tool
