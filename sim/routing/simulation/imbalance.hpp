#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// The imbalance of loads on experts, GPUs or pairs of GPUs.
struct Imbalance {
  double mean = 0;
  double busiest_over_mean = 1;  // 1: balanced; the busiest determines the time of a layer
  double gini = 0;               // 0: all equal; (n - 1) / n: all on one of n
  double spread = 0;             // standard deviation over mean
};

// No loads, or only zeros, count as balanced.
Imbalance imbalance(std::span<const std::int64_t> loads);

// [gpu]: rows that a GPU's experts compute in this layer, including IR rows.
std::vector<std::int64_t> computed_rows(const RoutingJob& job, const LayerRouting& layer);

// [(source, destination)] of every expert-parallel group, source first, without a GPU's rows for
// itself: the kept rows sent in one direction. Multiplied by row bytes, the traffic of an exchange
// without padding.
std::vector<std::int64_t> pair_rows(const RoutingJob& job, const LayerRouting& layer);

// For the same pairs: tokens with a kept route to the destination, each counted once. Empty if the
// layer has no copies.
std::vector<std::int64_t> pair_tokens(const RoutingJob& job, const LayerRouting& layer);

// [(source, node)] of every group, source first, without a GPU's own node (NVLink domain): the kept
// rows that go there, and their tokens, each counted once for all GPUs of the node. Empty if the
// layer has no copies.
struct NodeTraffic {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> tokens;
};
NodeTraffic node_traffic(const RoutingJob& job, const LayerRouting& layer);

// The imbalance figures of a layer.
struct LayerImbalance {
  Imbalance experts;  // primary routes before drops
  Imbalance gpus;     // rows computed
  Imbalance ir;       // IR rows computed; 1 and 0 without IR
  Imbalance pairs;    // rows kept, between different GPUs of a group
  // For pair_tokens() and node_traffic(): no loads if these are empty.
  Imbalance pair_tokens, node_rows, node_tokens;
};
LayerImbalance layer_imbalance(const RoutingJob& job, const LayerRouting& layer);

}  // namespace moesim::routing
