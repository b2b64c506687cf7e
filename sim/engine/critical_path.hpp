#pragma once

#include <vector>

#include "sim/engine/engine.hpp"

namespace moesim::engine {

// A stretch of the time that an execution takes.
struct PathStep {
  int operation = 0;
  int rank = 0;
  Picoseconds duration;
};

// What the end of the execution follows from, back to time 0, latest first, from the slowest rank
// on: a collective counts from its last member's arrival, before which that member's own operations
// count. So no wait for another rank is on it, but what that one did meanwhile. The durations sum
// to the end. Execution::lost counts as of the operations that took it.
std::vector<PathStep> critical_path(const Program& program, const Execution& execution);

// [operation]: the rank that the critical path is on where it passes the operation, in the order of
// the program: of one on the path the rank whose end of it counts, of one beside the path, which
// others hide, the rank of the path there.
std::vector<int> ranks_of_path(const Program& program, const Execution& execution);

// The path of one rank alone, from its last finish back: a collective counts from its own arrival,
// the wait for other members included. The durations sum to end_of(rank).
std::vector<PathStep> path_of_rank(const Program& program, const Execution& execution, int rank);

}  // namespace moesim::engine
