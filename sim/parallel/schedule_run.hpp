#pragma once

#include <functional>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/parallel/schedule.hpp"

namespace moesim::parallel {

// One micro-batch in one stage.
struct StageTimes {
  Picoseconds forward;
  Picoseconds input_gradient;
  Picoseconds weight_gradient;

  // How long an operation takes on this stage; forward_backward: both passes here, with nothing
  // gained.
  Picoseconds of(OperationKind kind) const;
};

struct PipelineTimes {
  std::vector<StageTimes> stages;  // one per stage of the shape
  // How long forward_backward takes, [forward stage x stages + backward stage]; empty: nothing is
  // gained, a pair takes the sum of its parts.
  std::vector<Picoseconds> pairs;
  Picoseconds p2p;  // from the end of an operation until another rank has its result
  // Whether a rank that sends does nothing else meanwhile; such time counts as idle.
  bool p2p_occupies_rank = false;
};

struct OperationSpan {
  Picoseconds start;
  Picoseconds end;
};

struct RankRun {
  std::vector<OperationSpan> spans;  // one per operation
  Picoseconds busy;                  // computing
  Picoseconds idle;                  // the rest of the makespan
  // The most chunk passes whose activations the rank holds: from the start of the forward pass
  // until the input gradient, or until the weight gradient too, is computed.
  int held = 0;
  int held_until_weight_gradient = 0;
};

struct ScheduleRun {
  Picoseconds makespan;
  std::vector<RankRun> ranks;

  // Idle time of all ranks over ranks x makespan.
  double bubble_share() const;
};

// Runs every rank's list strictly in its order: an operation starts when its rank is free and its
// inputs are there. F of stage j needs F of stage j - 1, the input gradient of stage j its own F
// and that of stage j + 1, a weight gradient the input gradient. Time and memory are linear in the
// number of operations. Throws Error when ranks wait for each other, or an operation is missing.
// Precondition: times has the stages of the shape.
ScheduleRun run_schedule(const Schedule& schedule, const PipelineTimes& times);

// The same with a time of its own for every operation: micro-batches of one stage may differ. It is
// asked for each operation once. `p2p` and `p2p_occupies_rank` are those of PipelineTimes, with a
// time of its own for what stage j sends to stage j + 1 and gets back from it: p2p[j].
// Precondition: p2p has a time for each stage but the last.
using OperationTime = std::function<Picoseconds(const PipelineOperation&)>;
ScheduleRun run_schedule(const Schedule& schedule, const OperationTime& time,
                         const std::vector<Picoseconds>& p2p, bool p2p_occupies_rank);

// What one pass of a stage weighs, such as bytes: until its input gradient, and from there until
// its weight gradient, where that comes later.
struct PassWeight {
  double before = 1;
  double waiting = 1;
  // Shares of `before` that its layers have, in the order of the forward pass; sum 1. Empty: a
  // forward_backward adds all of the one pass before it drops the other.
  std::vector<double> layers;
};

// Passes of one stage that a rank holds: all of them, and those that wait for a weight gradient.
struct HeldPasses {
  int all = 0;
  int waiting = 0;
  // In the middle of a forward_backward: the share that the pass ahead has already, less the share
  // that the other, one of `all`, has no more.
  double part = 0;
};

// How many passes of each stage a rank holds when the sum of their weights is largest. With layers
// the passes of a forward_backward go through it layer by layer: the n-th layer of one beside the
// n-th last of the other, which is dropped behind it (Megatron-Core, model_chunk_schedule_plan.py,
// TransformerModelChunkSchedulePlan.run). With layers alike that is one layer more than before.
std::vector<HeldPasses> held_at_peak(const Schedule& schedule, int rank,
                                     const std::vector<PassWeight>& weights);

// The most passes of the last stage that a rank has computed forward, not yet backward: those of
// which it keeps the logits. A forward_backward computes the one's loss backward before the layers
// and the other's forward behind them (as above, post_process). 0: the stage is on other ranks.
int losses_held(const Schedule& schedule, int rank);

}  // namespace moesim::parallel
