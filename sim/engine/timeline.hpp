#pragma once

#include <string>
#include <vector>

#include "sim/base/units.hpp"

namespace moesim::engine {

// One bar of a timeline. `stream` is "compute" or "communication", `category` the part of the step
// it counts to, `name` what ran (Kineto-like: "expert_ffn", "nccl:all_to_all", ...).
struct TimelineEvent {
  int rank = 0;
  std::string stream;
  std::string name;
  std::string category;
  int layer = -1;  // -1: belongs to no layer
  Picoseconds start;
  Picoseconds duration;
};

using Timeline = std::vector<TimelineEvent>;

}  // namespace moesim::engine
