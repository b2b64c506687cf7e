#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sim/routing/counts/count_router.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/kept_choices.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/tokens/decision.hpp"

namespace moesim::routing {

// Routes one layer of one replica under several jobs that share their logits: a group's logits are
// drawn once, reduced to the best experts of its tokens, and routed under each job while these are
// in cache. Jobs of routers that need more of the logits (KindRouter) draw them again; jobs with
// Fidelity::counts use a CountRouter, jobs that all keep all choices KeptChoices. Keeps its working
// memory; use one per thread.
class LayerRouter {
 public:
  // `draws`: as CountRouter has it.
  explicit LayerRouter(SimdLevel level = best_simd_level(), DrawCache* draws = nullptr)
      : kernels_(tile_kernels(level)), by_counts_(level, draws), by_choices_(kernels_) {}

  // `results[job]` receives the layer. The jobs have passed check() and have the same
  // shared_keys().
  void route(std::span<const RoutingJob> jobs, int replica, int layer,
             std::span<LayerRouting> results);

 private:
  // The result of routing one group.
  struct GroupView {
    const LossSums& sums;
    const std::vector<std::int32_t>& kept_rows;
    const std::vector<std::int32_t>& ir_rows;
    const std::vector<std::int64_t>& demand;
    std::int64_t exchanged_capacity;
    const TokenCopies& copies;
  };

  void start(std::span<const RoutingJob> jobs, std::span<LayerRouting> results);
  void draw_group(std::span<const RoutingJob> jobs, const LogitSource& logits, int group);
  void route_sharing(std::span<const RoutingJob> jobs, const LogitSource& logits,
                     const RouterContext& context, int group, std::span<LayerRouting> results);
  void route_others(std::span<const RoutingJob> jobs, const LogitSource& logits,
                    const RouterContext& context, int group, std::span<LayerRouting> results);
  static void add_group(const GroupView& part, int group, const RoutingJob& job, LossSums& sums,
                        LayerRouting& result);

  const TileKernels& kernels_;
  ChoiceTable table_;
  RouteOrders orders_;
  Decision decision_;
  std::vector<LossSums> sums_;
  TokenCopies copies_, no_copies_;
  std::vector<std::uint16_t> positions_;  // positions of the experts of recorded choices
  CountRouter by_counts_;
  KeptChoices by_choices_;
  int local_set_[3] = {};  // of each Rectification
  // The jobs that share the table, and the jobs that route separately.
  std::vector<std::size_t> sharing_;
  std::vector<std::pair<std::size_t, std::unique_ptr<KindRouter>>> others_;
};

}  // namespace moesim::routing
