#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine/program.hpp"
#include "sim/routing/jobs/gpu_rows.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/step/exchanges/exchange_links.hpp"
#include "sim/step/step_model.hpp"

namespace moesim::step {

// What the GPUs of each expert-parallel group send each other in the all-to-alls of MoE layers.

// Equal blocks between all members of a group, C rows for each expert. Keeps references to both
// arguments.
class PaddedTraffic final : public engine::Traffic {
 public:
  PaddedTraffic(const StepModel& model, const routing::ReplicaRouting& routing)
      : model_(model), routing_(routing) {}

  bool is_uneven(int operation) const override {
    return model_.direction(operation) != Direction::none;
  }
  void fill(int operation, int group, ByteMatrix& bytes) const override;
  // Groups with blocks of the same size.
  int pattern(int operation, int group) const override;

 private:
  const routing::LayerRouting& routed(int operation) const {
    return routing_.layers[static_cast<std::size_t>(model_.moe_layer(operation))];
  }

  const StepModel& model_;
  const routing::ReplicaRouting& routing_;
};

// The traffic without padding: the rows that routing keeps, of `row_bytes` each, to the GPUs of
// their experts (expert e on rank e / (E / P) of the group), and back. Where the scenario
// deduplicates: one row per token and GPU, or one per token and node plus the rows forwarded inside
// the node; all are sent at the same time, that is, forwarding adds no delay. Keeps references to
// both arguments.
class UnpaddedTraffic final : public engine::Traffic {
 public:
  // `routing` has kept_rows [gpu, expert] for every MoE layer of the model, of all GPUs or of one
  // group that represents all groups, and copies for the same GPUs where the scenario deduplicates.
  UnpaddedTraffic(const StepModel& model, const routing::ReplicaRouting& routing);

  bool is_uneven(int operation) const override;
  void fill(int operation, int group, ByteMatrix& bytes) const override;
  // Groups whose GPUs keep the same rows for every expert. Found at the first call for a layer.
  int pattern(int operation, int group) const override;

 private:
  const routing::LayerRouting& routed(int layer) const {
    return routing_.layers[static_cast<std::size_t>(layer)];
  }
  routing::GpuRows kept_rows(int layer) const { return {routed(layer).kept_rows, experts_}; }
  void fill_copies(int layer, int group, std::uint32_t row_bytes, ByteMatrix& bytes) const;
  std::string copies_of(int layer, int first_gpu) const;

  const StepModel& model_;
  const routing::ReplicaRouting& routing_;
  int experts_ = 0;
  int members_ = 0;
  mutable std::vector<std::int64_t> sent_;          // [owner], of one source
  mutable std::vector<std::vector<int>> patterns_;  // [layer][group], empty: not known yet
};

// Uneven traffic, adjusted to the bytes that take the curve's time on the links.
class AdjustedTraffic final : public engine::Traffic {
 public:
  AdjustedTraffic(const engine::Traffic& traffic, ExchangeLinks& links, int members)
      : traffic_(traffic), links_(links), members_(members) {}

  bool is_uneven(int operation) const override { return traffic_.is_uneven(operation); }
  void fill(int operation, int group, ByteMatrix& bytes) const override {
    traffic_.fill(operation, group, bytes);
    links_.adjust(group * members_, bytes);
  }
  int pattern(int operation, int group) const override {
    return traffic_.pattern(operation, group);
  }

 private:
  const engine::Traffic& traffic_;
  ExchangeLinks& links_;
  int members_ = 0;
};

}  // namespace moesim::step
