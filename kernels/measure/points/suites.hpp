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

// In order of worth: if time runs out, what a simulation needs first is there.
const std::vector<Suite>& all_suites();
// Throws UsageError that lists the suites, with the nearest one as a suggestion.
const Suite& find_suite(const std::string& name);

// What no suite measures, and why: an entry of a profile's missing[] each.
struct Gap {
  std::string suite;
  std::string reason;
  std::string hint;
};
const std::vector<Gap>& known_gaps();

// The rows of each of `experts` experts in the ragged FFN: `rows` in all, the shares falling as
// 1 / (1 + place), none without rows.
std::vector<std::int64_t> ragged_rows(int experts, std::int64_t rows);

// The bytes that rank `from` sends to each of `gpus` ranks in the uneven exchange: `bytes` in all
// from each rank, the receivers' shares falling as 1 / (1 + place), each rank's most loved receiver
// the one after itself; multiples of 16, at least 16.
std::vector<std::int64_t> uneven_row(int gpus, int from, std::int64_t bytes);

}  // namespace moesim::kernels::measure
