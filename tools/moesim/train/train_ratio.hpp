#pragma once

#include <string>
#include <vector>

#include "tools/moesim/train/train_grid.hpp"
#include "tools/moesim/train/train_point.hpp"

namespace moesim::tool {

// What rows of one machine, cluster and software share cancels between them: how far the ratio of
// two may be off. Where machine or cluster differ, how to ask for that; empty where the software
// does, or a baseline is given. `line`: what was typed.
std::string ratio_text(const CommandLine& line, const TrainGrid& grid,
                       const std::vector<TrainPoint>& points);

}  // namespace moesim::tool
