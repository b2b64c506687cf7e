#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/moesim/calibrate/calibrate_predictions.hpp"

namespace moesim::tool {

// A row of a CSV of measured times, predicted.
struct CalibrationRow {
  std::string file;
  std::size_t line = 0;  // of the file
  std::string op;
  std::string options;        // that differ from row to row, for people
  std::string configuration;  // all of them
  std::string software;       // what the column software has; "": nothing
  RowPrediction prediction;
  std::string time_column;  // that has the measured time
  uncertainty::MeasuredRow step;
  int repeats = 1;  // rows that it stands for

  std::string where() const;
};

// The rows of CSVs of measured times, or of logs of Megatron-LM (one each: calibrate_log.hpp). The
// column op says what a row is of (operations() of the predictor; without it a step), measured_ms
// or measured_us how long it took, or, of a step of train, tokens_per_s_per_gpu how fast it was,
// the others are options of the predictor's commands (with - or _); an empty cell is an option that
// is not given; options of `line` hold for every row that has none of its own. The column software
// of train is kept as it is. The other columns of the command's own CSV are ignored, so that such a
// file with measured_ms added is one of these. Throws UsageError naming file, line and column: an
// unknown column or operation, a cell that its row does not take, a row that the command refuses,
// rows of different machines, no or two measured times, one that looks like another unit or is
// shorter than the GPU's peak allows, the same row with different times, no row.
std::vector<CalibrationRow> load_calibration_rows(const std::vector<std::string>& paths,
                                                  const CommandLine& line, RowPredictor& predictor);

// Rows with the same options repeat one configuration. One row of each, with the geometric mean of
// their times, in the order in which they come first: repeats tell of noise, not of how far other
// configurations scatter.
std::vector<CalibrationRow> configurations_of(const std::vector<CalibrationRow>& rows);

// "3 rows", "20 rows of 1 configuration", "1 row of 1 configuration".
std::string counted_rows(const std::vector<CalibrationRow>& configurations);

}  // namespace moesim::tool
