#pragma once

#include <string>
#include <vector>

#include "kernels/measure/points/point.hpp"

namespace moesim::kernels::measure {

// How many ranks measure together, on how many nodes (equally many on each).
struct Ranks {
  Ranks(int count, int on_nodes = 1) : gpus(count), nodes(on_nodes) {}  // NOLINT: a number of GPUs
  int gpus;
  int nodes;
};

// A family of points that is measured together and feeds some of a profile's curves.
struct Suite {
  std::string name;                 // "gemm"
  std::string what;                 // one line for --list
  std::vector<std::string> curves;  // the ops of the profile it measures
  int fewest_gpus = 1;
  // Its points among the ranks' GPUs, in order of size; none below `fewest_gpus`.
  std::vector<PointSpec> (*points)(Ranks ranks) = nullptr;
};

// Device memory of a workload beside its arrays: their copies, rotated past twice the L2.
constexpr double rotation_bytes = 512e6;

}  // namespace moesim::kernels::measure
