#pragma once

#include "sim/engine/engine.hpp"

namespace moesim::engine {

// How compute and exchanges of a GPU slow each other down: factors >= 1 on the time of work that
// overlaps. NCCL's kernels take multiprocessors and memory bandwidth from the compute kernels, and
// vice versa.
struct Slowdowns {
  static constexpr double most = 1e6;

  double compute = 1;   // during an exchange of this rank
  double exchange = 1;  // while any of its members computes: the slowest member sets the pace
  bool none() const { return compute == 1 && exchange == 1; }
};

// As run() on an IdleFabric, but overlapping work slows down. An exchange starts when its last
// member arrives: members that wait for it are not slowed. Overlapping work progresses at a rate of
// 1 / factor; the duration of each interval is rounded to a picosecond. Throws std::logic_error as
// run() does, UsageError for factors outside 1 to 1e6.
Execution run_contended(const Program& program, const Durations& durations,
                        const Slowdowns& slowdowns);

}  // namespace moesim::engine
