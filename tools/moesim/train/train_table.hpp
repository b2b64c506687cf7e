#pragma once

#include <string>
#include <vector>

#include "sim/report/formats.hpp"
#include "tools/moesim/train/train_grid.hpp"
#include "tools/moesim/train/train_point.hpp"

namespace moesim::tool {

// The rows of a run of `train`, as `grid` has their values: as a table what differs, with notes
// below it; as CSV or JSON all options and figures. `line`: what was typed.
std::string table_text(const CommandLine& line, const std::vector<TrainPoint>& rows,
                       const TrainGrid& grid, report::Format format);

}  // namespace moesim::tool
