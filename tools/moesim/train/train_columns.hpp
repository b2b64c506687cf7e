#pragma once

#include <vector>

namespace moesim::tool {

struct TrainColumn {
  const char* name;
  const char* unit;     // "share": 0..1; "": counted, a multiple, or no number
  const char* meaning;  // nullptr: as of the loss of that name in `moesim sweep`
};

// The figures in a row of `moesim train`: all that training_row() writes beside options, parts of
// the step and its band. A row has those that its step has. Behind them figures that `moesim
// recommend` adds, and options that have a unit.
const std::vector<TrainColumn>& train_columns();

}  // namespace moesim::tool
