#pragma once

#include <string>
#include <vector>

#include "sim/training/training_job.hpp"
#include "sim/uncertainty/step_fit.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// A row of a CSV of measured steps, predicted.
struct CalibrationRow {
  std::size_t line = 0;  // of the file
  std::string options;   // that differ from row to row, for people
  training::TrainingJob job;
  uncertainty::MeasuredStep step;
};

// The rows of a CSV with the column measured_ms and, as columns, options of `train` (with - or _);
// an empty cell is an option that is not given; options of `line` hold for every row that has none
// of its own. The other columns of train's own CSV are ignored, so that such a file with
// measured_ms added is one of these. Throws UsageError naming file and line: an unknown column, a
// row that `train` refuses, rows of different machines, a measured time that looks like another
// unit, the same configuration with different times, fewer than two rows.
std::vector<CalibrationRow> load_calibration_rows(const std::string& path, const CommandLine& line);

}  // namespace moesim::tool
