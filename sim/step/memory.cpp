#include "sim/step/memory.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/routing/jobs/group_blocks.hpp"

namespace moesim::step {

RowPeak::RowPeak(const scenario::Scenario& scenario)
    : experts_(scenario.experts),
      members_(scenario.expert_parallel),
      pads_(scenario.router.pads_exchange()),
      by_group_(scenario.router.capacity_scope == routing::CapacityScope::group ||
                scenario.router.pads_to_busiest()),
      ragged_(scenario.is_ragged()) {}

void RowPeak::take(const routing::ReplicaRouting& routing) {
  if (!pads_) return take_rows(routing);
  if (!by_group_ && !ragged_) return;
  for (const routing::LayerRouting& layer : routing.layers) {
    if (layer.exchanged) take_blocks(layer);
  }
}

void RowPeak::take_blocks(const routing::LayerRouting& layer) {
  if (by_group_) rows_.block = std::max(rows_.block, layer.exchanged_capacity);
  if (layer.exchanged_capacity == 0) return;
  const double kept = std::accumulate(layer.kept_rows.begin(), layer.kept_rows.end(), 0.0);
  empty_sum_ += 1 - kept / routing::padded_slots(layer);
  padded_layers_ += 1;
}

void RowPeak::take_rows(const routing::ReplicaRouting& routing) {
  const auto experts = static_cast<std::size_t>(experts_);
  const auto members = static_cast<std::size_t>(members_);
  std::vector<std::int64_t> all_layers;  // [gpu]: computed
  for (const routing::LayerRouting& layer : routing.layers) {
    const std::size_t gpus = layer.kept_rows.size() / experts;
    std::vector<std::int64_t> computed(gpus);
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      std::int64_t sent = 0;
      for (std::size_t expert = 0; expert < experts; ++expert) {
        const std::int64_t rows = layer.kept_rows[gpu * experts + expert];
        sent += rows;
        computed[gpu / members * members + expert * members / experts] += rows;
      }
      rows_.sent = std::max(rows_.sent, sent);
    }
    busiest_sum_ += static_cast<double>(*std::max_element(computed.begin(), computed.end()));
    layers_ += 1;
    all_layers.resize(gpus);
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      rows_.most = std::max(rows_.most, computed[gpu]);
      all_layers[gpu] += computed[gpu];
    }
  }
  const auto layers = static_cast<std::int64_t>(routing.layers.size());
  for (const std::int64_t rows : all_layers) {
    rows_.mean = std::max(rows_.mean, (rows + layers - 1) / layers);
  }
}

model::MemoryFootprint memory_footprint(const scenario::Scenario& scenario, double ir_rows,
                                        const model::ExchangeRows& rows) {
  model::MemoryQuery query;
  query.model = scenario.model.get();
  query.experts = scenario.has_moe() ? scenario.experts : 0;
  query.gpus = scenario.gpus;
  query.expert_parallel = scenario.expert_parallel;
  query.tokens = scenario.tokens_per_gpu;
  query.sequence_length = scenario.sequence_length;
  if (scenario.has_moe()) {
    query.capacity = rows.block > 0
                         ? rows.block
                         : scenario.router.capacity(scenario.tokens_per_gpu, scenario.experts);
    query.choices = scenario.router.choices();
    query.gate_outputs = scenario.gate_outputs();
    if (!scenario.router.pads_exchange()) query.rows = rows;
    if (scenario.router.mixes_tokens()) {
      query.mixed_slots = scenario.mixed_slots();
    }
  }
  query.ir_rows = static_cast<std::int64_t>(std::ceil(ir_rows));
  query.zero = scenario.zero;
  query.checkpointing = scenario.checkpointing == scenario::Checkpointing::full;
  query.einsum = scenario.dispatch == scenario::Dispatch::einsum;
  query.train = scenario.mode == scenario::Mode::train;
  return model::memory_footprint(query);
}

}  // namespace moesim::step
