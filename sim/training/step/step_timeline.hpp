#pragma once

#include "sim/engine/timeline.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::training {

// What the ranks of one pipeline do in a step: of the set of ranks that ends last, its first rank
// in each stage. Streams of a rank:
//   pipeline       ranges: passes of chunks, "forward: micro-batch 3, chunk 5"
//   compute        their kernels by part and layer
//   communication  exchanges that computation waits for, or, in pairs, runs beside
//   blocking exchange  in pairs: exchanges and copies that the computation of its chunk waits for
//   p2p            waiting for other pipeline ranks, as the kernels of NCCL that wait
//   gradients      buckets of gradients, each of a chunk, under kernels of the last backward passes
//                  and behind them, then the part of the parameters' gather that the next forward
//                  pass does not hide
//   host           ranges: waiting for launches and reads, the fixed part of a step
// Kernels have names and groups by which study::classify_kernel() knows their part.
// The last event ends at the step's end (without reruns); of the mean of several recorded steps the
// one nearest to it is shown (TrainingStep::shown_step). Throws UsageError for more than
// most_timeline_events. `step` is training_step(job).
inline constexpr std::size_t most_timeline_events = 4'000'000;
engine::Timeline step_timeline(const TrainingJob& job, const TrainingStep& step);

}  // namespace moesim::training
