#pragma once

#include <vector>

#include "sim/parallel/schedule.hpp"

namespace moesim::parallel {

// The operations of one rank of dualpipe or dualpipe-v. Precondition: schedule_refusal() has
// nothing against the shape.
std::vector<PipelineOperation> dual_pipe_operations(const ScheduleShape& shape, int rank);

}  // namespace moesim::parallel
