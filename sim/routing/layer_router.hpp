#pragma once

#include <span>
#include <vector>

#include "sim/routing/decision.hpp"
#include "sim/routing/logit_source.hpp"
#include "sim/routing/routing_simulation.hpp"

namespace moesim::routing {

// Routes one layer of one replica under several jobs that share their logits: a group's logits are
// drawn once, reduced to its tokens' best experts, and routed under each job while these are in
// cache. Keeps its working memory; one per thread.
class LayerRouter {
 public:
  explicit LayerRouter(SimdLevel level = best_simd_level()) : kernels_(tile_kernels(level)) {}

  // `results[job]` receives the layer. The jobs have passed check() and share logits_key().
  void route(std::span<const RoutingJob> jobs, int replica, int layer,
             std::span<LayerRouting> results);

 private:
  void draw_group(std::span<const RoutingJob> jobs, const LogitSource& logits, int group);

  const TileKernels& kernels_;
  ChoiceTable table_;
  RouteOrders orders_;
  Decision decision_;
  std::vector<LossSums> sums_;
  int local_set_[3] = {};  // of each Rectification
};

}  // namespace moesim::routing
