#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/rules/moe_phases.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::step {

using routing::Pass;

// What all GPUs do next in a step.
enum class Action {
  embedding,
  layer,              // one layer of the pass; backward with what it has to compute again
  head,               // LM head and loss
  reduce_layer,       // gradients of the layer, while later layers are computed
  reduce_outer,       // gradients that belong to no layer; waits for those of the layers
  reduce_all,         // all gradients; what follows waits
  accumulate_shards,  // reduced gradients of a micro-step onto those of the ones before
  update              // optimizer
};

struct ScheduleEntry {
  Action action = Action::layer;
  Pass pass = Pass::forward;
  int layer = -1;
  std::int64_t micro_step = 0;
};

// The order of a whole step: one entry after the other on every GPU.
std::vector<ScheduleEntry> training_schedule(const scenario::Scenario& scenario);

}  // namespace moesim::step
