#include "tools/moesim/route/logits_detail.hpp"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "sim/report/routing_detail.hpp"
#include "sim/routing/rules/expert_placement.hpp"

namespace moesim::tool {
namespace {

using Counts = std::vector<std::int64_t>;

// [expert]: how many of the tokens' k best logits are its own.
Counts best_by_logit(const routing::GroupOfFile& file, int top_k) {
  const auto experts = static_cast<std::size_t>(file.experts);
  Counts demand(experts, 0);
  std::vector<std::size_t> order(experts);
  for (std::size_t first = 0; first < file.logits.size(); first += experts) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](std::size_t one, std::size_t other) {
                        const float a = file.logits[first + one];
                        const float b = file.logits[first + other];
                        return a != b ? a > b : one < other;
                      });
    for (int choice = 0; choice < top_k; ++choice)
      ++demand[order[static_cast<std::size_t>(choice)]];
  }
  return demand;
}

// [expert]: the primary routes that asked for it, kept or not.
Counts demand_of(const routing::RouterConfig& router, const routing::GroupOfFile& file,
                 const routing::RoutedGroup& group) {
  // Where experts choose, what tokens asked for is not among the routes.
  if (router.kind->blocks == routing::ExchangeBlocks::full &&
      router.kind->capacity == routing::CapacityRule::by_factor) {
    return best_by_logit(file, router.top_k);
  }
  Counts demand(static_cast<std::size_t>(file.experts), 0);
  for (const routing::Route& route : group.routes()) {
    if (route.kind != routing::RouteKind::primary || route.expert == routing::no_expert) continue;
    ++demand[static_cast<std::size_t>(route.expert)];
  }
  return demand;
}

}  // namespace

nlohmann::ordered_json logits_detail(const scenario::Scenario& scenario,
                                     const routing::GroupOfFile& file,
                                     const routing::RoutedGroup& group, double row_bytes) {
  routing::RoutingJob job;
  job.router = scenario.router;
  job.experts = static_cast<int>(file.experts);
  job.gpus = job.expert_parallel = static_cast<int>(file.ranks);
  job.expert_placement = scenario.order;
  job.gpus_per_domain = scenario.cluster->gpus_per_domain;
  job.tokens_per_gpu = file.tokens;
  job.layers = 1;
  routing::LayerRouting layer;
  layer.loss = group.loss;
  for (const std::int64_t slots : group.capacity) layer.capacity = std::max(layer.capacity, slots);
  layer.exchanged_capacity = group.exchanged_capacity;
  layer.exchanged = group.exchanged;
  layer.kept_rows = group.kept_rows;
  layer.ir_rows = group.ir_rows;
  layer.ir_rows.resize(static_cast<std::size_t>(file.ranks));
  layer.demand = demand_of(job.router, file, group);
  if (scenario.order) {  // the group has the experts' numbers, a layer their places
    const std::vector<std::uint16_t>& expert_at = scenario.order->expert_at(0);
    routing::put_in_placement(expert_at, layer.kept_rows);
    routing::put_in_placement(expert_at, layer.demand);
  }
  auto replica = std::make_shared<routing::ReplicaRouting>();
  replica->loss = group.loss;
  replica->layers.push_back(std::move(layer));
  const std::vector<std::shared_ptr<const routing::ReplicaRouting>> replicas{std::move(replica)};
  nlohmann::ordered_json detail = report::routing_detail(job, replicas, row_bytes);
  if (row_bytes == 0) detail.erase("pair_bytes");
  return detail;
}

}  // namespace moesim::tool
