#pragma once

#include "sim/model/memory/memory.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::step {

// The rows that the GPUs of a step without padding send and compute: the maximum over GPUs and
// replicas. Where blocks are padded to the largest kept count of a group (CapacityScope::group):
// the largest block.
class RowPeak {
 public:
  explicit RowPeak(const scenario::Scenario& scenario);
  // `routing` has kept_rows of all GPUs.
  void take(const routing::ReplicaRouting& routing);
  const model::ExchangeRows& rows() const { return rows_; }
  // Rows of the GPU that computes most in a layer (it may be another GPU in each layer), averaged
  // over layers and replicas: all GPUs wait for it. 0 before the first take().
  double busiest_of_layer() const { return layers_ > 0 ? busiest_sum_ / layers_ : 0; }
  // Share of the rows of padded blocks that hold no token, where blocks are larger than a source's
  // C (ragged sources) or may be larger (CapacityScope::group), averaged over replicas and the
  // layers that exchange; 0 for other scenarios, where TokenLoss::padded has it.
  double empty_share() const { return padded_layers_ > 0 ? empty_sum_ / padded_layers_ : 0; }

 private:
  void take_rows(const routing::ReplicaRouting& routing);
  void take_blocks(const routing::LayerRouting& layer);

  int experts_ = 0;
  int members_ = 0;
  bool pads_ = false;
  bool by_group_ = false;
  bool ragged_ = false;
  model::ExchangeRows rows_;
  double busiest_sum_ = 0, layers_ = 0;
  double empty_sum_ = 0, padded_layers_ = 0;
};

// The peak memory of one GPU during the step; `ir_rows` is the mean number of rectified rows per
// GPU and layer, `rows` those of RowPeak.
model::MemoryFootprint memory_footprint(const scenario::Scenario& scenario, double ir_rows,
                                        const model::ExchangeRows& rows);

}  // namespace moesim::step
