#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// How unevenly loads lie on experts, GPUs or pairs of GPUs.
struct Imbalance {
  double mean = 0;
  double busiest_over_mean = 1;  // 1: balanced; the busiest sets the time of a layer
  double gini = 0;               // 0: all equal; (n - 1) / n: all on one of n
  double spread = 0;             // standard deviation over mean
};

// No loads, or none above 0, count as balanced.
Imbalance imbalance(std::span<const std::int64_t> loads);

// [gpu]: rows that a GPU's experts compute in this layer, IR rows included.
std::vector<std::int64_t> computed_rows(const RoutingJob& job, const LayerRouting& layer);

// [(source, destination)] of every expert-parallel group, source first, a GPU's rows for itself
// left out: kept rows that travel one way. Times row bytes, what an exchange without padding sends.
std::vector<std::int64_t> pair_rows(const RoutingJob& job, const LayerRouting& layer);

// The same pairs: tokens with a kept route to the destination, each counted once. Empty where the
// layer has no copies.
std::vector<std::int64_t> pair_tokens(const RoutingJob& job, const LayerRouting& layer);

// [(source, node)] of every group, source first, a GPU's own node (NVLink domain) left out: the
// kept rows that go there, and the tokens they are of, each counted once for all GPUs of the node.
// Empty where the layer has no copies.
struct NodeTraffic {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> tokens;
};
NodeTraffic node_traffic(const RoutingJob& job, const LayerRouting& layer);

// What a layer's load says in one line.
struct LayerImbalance {
  Imbalance experts;  // primary routes before drops
  Imbalance gpus;     // rows computed
  Imbalance ir;       // IR rows computed; 1 and 0 without IR
  Imbalance pairs;    // rows kept, between different GPUs of a group
  // Of pair_tokens() and node_traffic(): no loads where these are empty.
  Imbalance pair_tokens, node_rows, node_tokens;
};
LayerImbalance layer_imbalance(const RoutingJob& job, const LayerRouting& layer);

}  // namespace moesim::routing
