#pragma once

#include <vector>

#include "sim/engine/engine.hpp"

namespace moesim::engine {

// One stretch of the critical path of one rank.
struct PathStep {
  int operation = 0;
  Picoseconds duration;
};

// The critical path of the rank, from its last finish back to time 0, latest first: the durations
// sum to end_of(rank). A collective counts from this rank's arrival, including the wait for other
// members.
std::vector<PathStep> critical_path(const Program& program, const Execution& execution, int rank);

// A stretch of the time that the whole execution takes, on the rank that all others wait for.
struct ChainStep {
  int operation = 0;
  int rank = 0;
  Picoseconds duration;
};

// What the end of the execution follows from, back to time 0, latest first: as critical_path() of
// the slowest rank, but a collective counts from its last member's arrival, before which that
// member's own operations count. The durations sum to the end.
std::vector<ChainStep> slowest_chain(const Program& program, const Execution& execution);

}  // namespace moesim::engine
