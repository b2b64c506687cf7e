#pragma once

#include "sim/model/memory.hpp"
#include "sim/step/scenario.hpp"

namespace moesim::step {

// The memory of one GPU at the peak of the step; `ir_rows` is the mean number of rectified rows
// per GPU and layer.
model::MemoryFootprint memory_footprint(const Scenario& scenario, double ir_rows);

}  // namespace moesim::step
