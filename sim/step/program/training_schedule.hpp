#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/rules/moe_phases.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::step {

using routing::Pass;

// One item of a step, the same for all GPUs.
enum class Action {
  embedding,
  layer,              // one layer of the pass; backward includes recomputation
  head,               // LM head and loss
  reduce_layer,       // gradients of the layer, while later layers are computed
  reduce_outer,       // gradients outside the layers; waits for those of the layers
  reduce_all,         // all gradients; later items wait
  accumulate_shards,  // adds a micro-step's reduced gradients to the earlier ones
  update              // optimizer
};

struct ScheduleEntry {
  Action action = Action::layer;
  Pass pass = Pass::forward;
  int layer = -1;
  std::int64_t micro_step = 0;
};

// The order of a whole step: every GPU runs the entries one after another.
std::vector<ScheduleEntry> training_schedule(const scenario::Scenario& scenario);

}  // namespace moesim::step
