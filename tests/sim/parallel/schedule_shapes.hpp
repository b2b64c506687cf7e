// Shapes of schedules that tests ask for.
#pragma once

#include "sim/parallel/schedule.hpp"

namespace moesim::parallel {

inline ScheduleShape shape_of(ScheduleKind kind, int ranks, int micro_batches,
                              int virtual_stages = 1) {
  ScheduleShape shape;
  shape.kind = kind;
  shape.ranks = ranks;
  shape.micro_batches = micro_batches;
  shape.virtual_stages = virtual_stages;
  return shape;
}

inline ScheduleShape overlapped(ScheduleShape shape) {
  shape.expert_overlap = true;
  return shape;
}

}  // namespace moesim::parallel
