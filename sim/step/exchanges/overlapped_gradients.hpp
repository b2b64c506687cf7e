#pragma once

#include <functional>

#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/engine/engine.hpp"

namespace moesim::step {

// Gradients that are reduced beside the backward pass get on in a quarter of its time, as in a
// training step of `train` (profile::hidden_share). Beside exchanges on the same links they do not
// get on at all: tokens go first (assumed). These are NICs where both groups cross NVLink domains,
// NVLink where neither does.
//
// To each reduction of the stream `gradients` the time is added that it loses in this way to the
// operations that follow it before the next reduction. Where gradients take longer than the pass,
// this conserves the work of links and GPUs; a reduction after the pass may be one layer's loss too
// long. `time_of` says how long an operation takes without gradients beside it. Returns what was
// added, as Execution::lost. `slowdown`: by which the engine slows exchanges beside compute, 1 or
// more; only what a quarter of the pass asks for beyond that is added.
std::vector<engine::LostTime> slow_overlapped_gradients(
    const engine::Program& program, const cluster::Cluster& cluster, double slowdown,
    const std::function<Picoseconds(int operation)>& time_of, engine::Durations& durations);

}  // namespace moesim::step
