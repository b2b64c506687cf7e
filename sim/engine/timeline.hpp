#pragma once

#include <string>
#include <vector>

#include "sim/base/units.hpp"

namespace moesim::engine {

// One bar of a timeline. `stream` is "compute", "communication" or "gradients", `category` the part
// of the step it counts to, `name` what ran (Kineto-like: "expert_ffn", "nccl:all_to_all", ...).
struct TimelineEvent {
  int rank = 0;
  std::string stream;
  std::string name;
  std::string category;
  int layer = -1;  // -1: belongs to no layer
  Picoseconds start;
  Picoseconds duration;
  // Communication: which partition of the ranks into groups, which of its groups, of how many
  // ranks; -1 and 0: not known.
  int partition = -1;
  int group = -1;
  int group_size = 0;
  double bytes = 0;  // what this rank sends to all, itself included, or reduces; 0: not known
  std::string element = "BFloat16";  // of these bytes, as PyTorch names types
  double element_bytes = 2;
  std::string group_name{};  // of a group of no partition: "pipeline_parallel"
  std::string detail{};      // "bucket 3 of 14"
  int chunk = -1;            // of a pipeline, whose gradients are exchanged; -1: of none
  bool is_range = false;     // around kernels, or of the host: no kernel of a GPU
};

using Timeline = std::vector<TimelineEvent>;

}  // namespace moesim::engine
