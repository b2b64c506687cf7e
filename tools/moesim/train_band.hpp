#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/uncertainty/terms.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// How far a predicted training step may be off, by steps that were measured.
struct TrainBand {
  uncertainty::Subject subject;
  uncertainty::Band band;
  std::vector<uncertainty::Term> terms;  // the largest first
};

// The flags of `train` that bands need.
std::vector<Flag> band_flags();

// For --software, or for software that is not named. Throws UsageError for a software of which no
// step was measured.
TrainBand requested_band(const CommandLine& line, const training::TrainingJob& job,
                         const training::TrainingStep& step);

// Step, speed and TFLOP/s at each level; what the band is based on and what would narrow it.
std::string band_text(const TrainBand& band, const training::TrainingStep& step);
// Columns of a row: the widest level and its ends.
std::vector<std::pair<std::string, Cell>> band_cells(const TrainBand& band,
                                                     const training::TrainingStep& step);

}  // namespace moesim::tool
