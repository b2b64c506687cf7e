#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/engine/program.hpp"
#include "sim/routing/jobs/gpu_rows.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/step/prices/dispatcher_times.hpp"
#include "sim/step/prices/prices.hpp"
#include "sim/step/prices/token_classes.hpp"
#include "sim/step/program/step_program.hpp"

namespace moesim::step {

// How long the operations of a program take in one simulated replica: their prices for the work
// that its routing gives them. The replica is that of the curve errors, or CurveErrors::none.
class StepDurations {
 public:
  // Keeps references to all three.
  StepDurations(const scenario::Scenario& scenario, const StepProgram& program, Prices& prices)
      : scenario_(scenario), program_(program), prices_(prices) {
    if (scenario.dispatcher != nullptr && scenario.has_moe() && scenario.expert_parallel > 1) {
      dispatcher_.emplace(scenario);
    }
  }

  // The durations with blocks of equal size, C rows for each source GPU and expert. `routing` may
  // be null for a model without MoE layers.
  engine::Durations padded(const routing::ReplicaRouting* routing, int replica);
  // The durations with the rows that routing keeps; the all-to-alls of MoE layers are left 0,
  // unless a dispatcher has them. Throws as StepModel::unpadded_durations() says.
  engine::Durations unpadded(const routing::ReplicaRouting& routing, int replica);
  // What an operation of a rank with work of its own consists of; null: nothing. Where the rank
  // computes blocks of several experts, that of its longest one: for shares of curves. Not for the
  // all-to-alls that unpadded() leaves 0. Valid until the next call.
  PricedWork* work_of(int operation, int gpu, const routing::ReplicaRouting* routing);
  // As StepModel::latency_shares().
  std::vector<std::vector<double>> latency_shares(const routing::ReplicaRouting* routing);
  // What the times of a dispatcher are based on; empty without one.
  std::string dispatcher_provenance() const { return dispatcher_ ? dispatcher_->provenance() : ""; }

 private:
  struct RowCounts {
    std::vector<std::int32_t> sent;      // [gpu]
    std::vector<std::int32_t> received;  // [group, expert]
  };

  engine::Durations empty() const;
  const routing::LayerRouting& layer_of(const StepOperation& operation,
                                        const routing::ReplicaRouting& routing) const {
    return routing.layers[static_cast<std::size_t>(operation.moe_layer)];
  }
  std::vector<bool> skipped(const routing::ReplicaRouting& routing) const;
  std::vector<double> dispatcher_waits(int op, const routing::ReplicaRouting& routing) const;
  // GPUs that do the same in an operation with equal blocks: those of a token class in groups with
  // blocks of the same size, by one of these groups.
  struct GpuClass {
    TokenClass tokens = 0;
    int group = 0;
  };
  std::int64_t block_rows(const routing::LayerRouting& layer, const GpuClass& gpus) const;
  Picoseconds time_on(int operation, const routing::ReplicaRouting* routing, const GpuClass& gpus,
                      int replica);
  PricedWork* work_on(int operation, const routing::ReplicaRouting* routing, const GpuClass& gpus);
  bool goes_by_blocks(int operation, const routing::ReplicaRouting* routing) const;
  // One time for all GPUs, or one for each.
  std::vector<Picoseconds> by_gpu_class(int operation, const routing::ReplicaRouting* routing,
                                        int replica);
  std::vector<Picoseconds> by_rectified_rows(const StepOperation& operation,
                                             const routing::LayerRouting& layer, int replica);
  std::vector<Picoseconds> by_rows(const StepOperation& operation, const RowCounts& counts,
                                   int replica);
  int group_of(int gpu) const { return gpu / scenario_.expert_parallel; }
  routing::GpuRows kept_rows(const routing::LayerRouting& layer) const {
    return {layer.kept_rows, scenario_.experts};
  }
  RowCounts count_rows(const routing::LayerRouting& layer) const;
  // One time for all GPUs, one for each, or none where the operation's matrix times it. `counts` of
  // each MoE layer are filled as they are needed.
  std::vector<Picoseconds> unpadded_times(int operation, const routing::ReplicaRouting& routing,
                                          int replica, std::vector<RowCounts>& counts);
  std::int64_t rows_of(const StepOperation& operation, const routing::LayerRouting& layer,
                       int gpu) const;
  struct Dispatched {
    profile::DispatcherStage stage;
    const char* label;
  };
  Dispatched dispatched(int operation) const;
  std::vector<Picoseconds> by_dispatcher(int operation, const routing::LayerRouting& layer,
                                         int replica);

  const scenario::Scenario& scenario_;
  const StepProgram& program_;
  Prices& prices_;
  std::optional<DispatcherTimes> dispatcher_;
  PricedWork dispatched_;  // of the last work_of()
};

}  // namespace moesim::step
