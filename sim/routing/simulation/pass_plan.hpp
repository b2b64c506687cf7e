#pragma once

#include <cstddef>

namespace moesim::routing {

// How long a pass over the layers of jobs that share their logits may take, so that the first jobs
// are done before the last ones. Each pass draws the logits anew: many short ones take longer than
// one.
struct PassLimit {
  double seconds = 0;  // of a pass, all replicas; 0: no limit
  int threads = 1;     // that share the layers, and wait for a job each
};

// Seconds of one thread for a layer of one replica under n jobs: draw + n * job.
struct PassCost {
  double draw = 0;
  double job = 0;

  double of_layer(std::size_t jobs) const { return draw + job * static_cast<double>(jobs); }
};

// The cost by the time of a layer under one job, and of the same under all of them, at least 2.
PassCost measured_cost(double seconds_of_one, double seconds_of_all, std::size_t jobs);

// How many of the `left` jobs are routed in the next pass, after `passes` of this kind. `layers`:
// of all replicas. At least one for each thread. More than the limit allows where drawing would
// take over half of the first pass, a quarter of the second and so on, down to a tenth: the logits
// that are drawn again then cost less than they delay. The last few jobs are not left for a pass of
// their own. Where drawing takes a tenth of a second or a twentieth of the whole, the first pass
// has four jobs, or one for each thread: its rows are there soon.
std::size_t jobs_of_pass(const PassCost& cost, double layers, std::size_t left, int passes,
                         const PassLimit& limit);

}  // namespace moesim::routing
