#pragma once

#include "sim/study/search/training_search.hpp"

namespace moesim::tool {

// What a step may take of a GPU's memory, in GiB.
double room_gib(const study::TrainingSearch& search);

}  // namespace moesim::tool
