#pragma once

#include "sim/engine/engine.hpp"

namespace moesim::engine {

// How the two streams of a GPU slow each other down: factors >= 1 on the time of what runs
// meanwhile. NCCL's kernels take multiprocessors and memory bandwidth from the compute kernels, and
// the other way round.
struct Slowdowns {
  double compute = 1;   // while an exchange of this rank is under way
  double exchange = 1;  // while any of its members computes: the slowest member sets the pace
  bool none() const { return compute == 1 && exchange == 1; }
};

// As run() on an IdleFabric, but what overlaps slows down. An exchange is under way from its last
// member's arrival on: who waits for it is not slowed. Work goes on at 1 / factor and is neither
// lost nor done twice; each stretch is rounded to a picosecond. Throws std::logic_error as run()
// does.
Execution run_contended(const Program& program, const Durations& durations,
                        const Slowdowns& slowdowns);

}  // namespace moesim::engine
