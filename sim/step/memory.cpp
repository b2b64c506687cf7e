#include "sim/step/memory.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::step {

model::MemoryFootprint memory_footprint(const Scenario& scenario, double ir_rows) {
  model::MemoryQuery query;
  query.model = scenario.model.get();
  query.experts = scenario.has_moe() ? scenario.experts : 0;
  query.gpus = scenario.gpus;
  query.expert_parallel = scenario.expert_parallel;
  query.tokens = scenario.tokens_per_gpu;
  if (scenario.has_moe()) {
    query.capacity = scenario.router.capacity(scenario.tokens_per_gpu, scenario.experts);
    query.choices = scenario.router.choices();
  }
  query.ir_rows = static_cast<std::int64_t>(std::ceil(ir_rows));
  query.zero = scenario.zero;
  query.checkpointing = scenario.checkpointing == Checkpointing::full;
  query.einsum = scenario.dispatch == Dispatch::einsum;
  query.train = scenario.mode == Mode::train;
  return model::memory_footprint(query);
}

}  // namespace moesim::step
