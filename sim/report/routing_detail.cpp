#include "sim/report/routing_detail.hpp"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/statistics.hpp"
#include "sim/report/formats.hpp"
#include "sim/routing/simulation/imbalance.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/study/sweep/result_row.hpp"

namespace moesim::report {
namespace {

using Json = nlohmann::ordered_json;
using routing::ReplicaRouting;
using Replicas = std::span<const std::shared_ptr<const routing::ReplicaRouting>>;

// As many digits as everywhere in results.
Json number(double value) { return json_figure(value); }

Json distribution(const std::vector<double>& values) {
  return {{"mean", number(mean(values))},
          {"p05", number(quantile(values, 0.05))},
          {"median", number(median(values))},
          {"p95", number(quantile(values, 0.95))},
          {"max", number(*std::max_element(values.begin(), values.end()))}};
}

// loads[replica][layer]
using Loads = std::vector<std::vector<routing::LayerImbalance>>;

template <typename Value>
std::vector<double> over_all(const Loads& loads, Value value) {
  std::vector<double> values;
  for (const auto& replica : loads) {
    for (const routing::LayerImbalance& load : replica) values.push_back(value(load));
  }
  return values;
}

template <typename Value>
double over_replicas(const Loads& loads, std::size_t layer, Value value) {
  double sum = 0;
  for (const auto& replica : loads) sum += value(replica[layer]);
  return sum / static_cast<double>(loads.size());
}

double expert_peak(const routing::LayerImbalance& load) { return load.experts.busiest_over_mean; }
double gpu_peak(const routing::LayerImbalance& load) { return load.gpus.busiest_over_mean; }
double expert_gini(const routing::LayerImbalance& load) { return load.experts.gini; }
double gpu_gini(const routing::LayerImbalance& load) { return load.gpus.gini; }
double ir_peak(const routing::LayerImbalance& load) { return load.ir.busiest_over_mean; }
double ir_spread(const routing::LayerImbalance& load) { return load.ir.spread; }
double ir_mean(const routing::LayerImbalance& load) { return load.ir.mean; }
double pair_peak(const routing::LayerImbalance& load) { return load.pairs.busiest_over_mean; }
double pair_mean(const routing::LayerImbalance& load) { return load.pairs.mean; }

Json imbalance(const Loads& loads, bool rectified) {
  Json result{{"expert_demand_busiest_over_mean", distribution(over_all(loads, expert_peak))},
              {"gpu_rows_busiest_over_mean", distribution(over_all(loads, gpu_peak))},
              {"expert_demand_gini", distribution(over_all(loads, expert_gini))},
              {"gpu_rows_gini", distribution(over_all(loads, gpu_gini))},
              {"pair_rows_busiest_over_mean", distribution(over_all(loads, pair_peak))}};
  if (rectified) {
    result["ir_rows_busiest_over_mean"] = distribution(over_all(loads, ir_peak));
    result["ir_rows_spread"] = distribution(over_all(loads, ir_spread));
  }
  return result;
}

// What every pair exchanges one way where blocks are padded to their largest: (E / P) C rows.
double padded_bytes(const routing::RoutingJob& job, Replicas replicas, double row_bytes) {
  std::int64_t rows = 0;
  for (const auto& replica : replicas) {
    for (const routing::LayerRouting& layer : replica->layers) {
      if (layer.exchanged) rows = std::max(rows, layer.exchanged_capacity);
    }
  }
  return static_cast<double>(rows * (job.experts / job.expert_parallel)) * row_bytes;
}

double token_pair_mean(const routing::LayerImbalance& load) { return load.pair_tokens.mean; }
double node_row_mean(const routing::LayerImbalance& load) { return load.node_rows.mean; }
double node_token_mean(const routing::LayerImbalance& load) { return load.node_tokens.mean; }

double largest(const Loads& loads, routing::Imbalance routing::LayerImbalance::*what) {
  const std::vector<double> most = over_all(loads, [&](const routing::LayerImbalance& load) {
    return (load.*what).mean * (load.*what).busiest_over_mean;
  });
  return *std::max_element(most.begin(), most.end());
}

// What it would be if no token were sent twice to one GPU, or to one node.
void add_distinct(const routing::RoutingJob& job, const Loads& loads, double row_bytes,
                  Json& result) {
  result["distinct_mean"] = number(mean(over_all(loads, token_pair_mean)) * row_bytes);
  result["distinct_max"] =
      number(largest(loads, &routing::LayerImbalance::pair_tokens) * row_bytes);
  if (routing::group_nodes(job) == 1) return;
  result["to_other_node"] = {
      {"kept_mean", number(mean(over_all(loads, node_row_mean)) * row_bytes)},
      {"kept_max", number(largest(loads, &routing::LayerImbalance::node_rows) * row_bytes)},
      {"distinct_mean", number(mean(over_all(loads, node_token_mean)) * row_bytes)},
      {"distinct_max", number(largest(loads, &routing::LayerImbalance::node_tokens) * row_bytes)}};
}

Json pair_bytes(const routing::RoutingJob& job, Replicas replicas, const Loads& loads,
                double row_bytes) {
  Json result{{"row_bytes", number(row_bytes)},
              {"kept_mean", number(mean(over_all(loads, pair_mean)) * row_bytes)},
              {"kept_max", number(largest(loads, &routing::LayerImbalance::pairs) * row_bytes)}};
  if (!replicas[0]->layers[0].copies.to_gpu.empty()) add_distinct(job, loads, row_bytes, result);
  if (job.router.pads_exchange()) {
    result["padded"] = number(padded_bytes(job, replicas, row_bytes));
  }
  if (job.expert_parallel == 1) result = {{"row_bytes", number(row_bytes)}};
  return result;
}

// Shares of the experts in the demand of a layer, by their number; all 0 where there is no demand.
std::vector<double> shares(const routing::RoutingJob& job, const ReplicaRouting& replica,
                           std::size_t layer) {
  const std::vector<std::int64_t>& demand = replica.layers[layer].demand;
  std::vector<double> result(demand.begin(), demand.end());
  if (job.expert_placement != nullptr) {
    routing::put_in_placement(job.expert_placement->position_of(static_cast<int>(layer)), result);
  }
  double sum = 0;
  for (const double routes : result) sum += routes;
  for (double& share : result) share = sum > 0 ? share / sum : 0;
  return result;
}

Json to_numbers(const std::vector<double>& values) {
  Json result = Json::array();
  for (const double value : values) result.push_back(number(value));
  return result;
}

void add_losses(Json& object, const routing::TokenLoss& loss) {
  for (const study::LossFigure& figure : study::loss_figures()) {
    const Cell cell = figure.cell(loss);
    if (!is_absent(cell)) object[figure.name] = number(number_in(cell));
  }
}

Json layer_lines(const routing::RoutingJob& job, Replicas replicas, const Loads& loads,
                 bool rectified) {
  Json lines = Json::array();
  for (std::size_t layer = 0; layer < replicas[0]->layers.size(); ++layer) {
    Json line{{"layer", layer}};
    std::vector<routing::TokenLoss> losses;
    std::vector<double> share;
    for (const auto& replica : replicas) {
      losses.push_back(replica->layers[layer].loss);
      const std::vector<double> own = shares(job, *replica, layer);
      share.resize(own.size(), 0);
      for (std::size_t expert = 0; expert < own.size(); ++expert) {
        share[expert] += own[expert] / static_cast<double>(replicas.size());
      }
    }
    add_losses(line, routing::mean_loss(losses));
    line["expert_demand_busiest_over_mean"] = number(over_replicas(loads, layer, expert_peak));
    line["gpu_rows_busiest_over_mean"] = number(over_replicas(loads, layer, gpu_peak));
    line["expert_demand_gini"] = number(over_replicas(loads, layer, expert_gini));
    if (rectified) line["ir_rows_spread"] = number(over_replicas(loads, layer, ir_spread));
    line["expert_demand_share"] = to_numbers(share);
    lines.push_back(std::move(line));
  }
  return lines;
}

// The layer whose busiest expert is furthest above the mean, averaged over replicas: what is worth
// watching over time.
std::size_t most_uneven_layer(const Loads& loads) {
  std::size_t worst = 0;
  for (std::size_t layer = 1; layer < loads[0].size(); ++layer) {
    if (over_replicas(loads, layer, expert_peak) > over_replicas(loads, worst, expert_peak)) {
      worst = layer;
    }
  }
  return worst;
}

Json replica_lines(const routing::RoutingJob& job, Replicas replicas, const Loads& loads,
                   std::size_t watched) {
  Json lines = Json::array();
  for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
    Json line{{"replica", replica}};
    add_losses(line, replicas[replica]->loss);
    const Loads own{loads[replica]};
    line["expert_demand_busiest_over_mean"] = distribution(over_all(own, expert_peak));
    line["gpu_rows_busiest_over_mean"] = distribution(over_all(own, gpu_peak));
    line["expert_demand_share"] = to_numbers(shares(job, *replicas[replica], watched));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

Json routing_detail(const routing::RoutingJob& job, Replicas replicas, double row_bytes) {
  Loads loads;
  for (const auto& replica : replicas) {
    std::vector<routing::LayerImbalance>& layers = loads.emplace_back();
    for (const routing::LayerRouting& layer : replica->layers) {
      layers.push_back(routing::layer_imbalance(job, layer));
    }
  }
  const bool rectified = job.router.rectification != routing::Rectification::none;
  std::vector<double> layer_failed(loads[0].size(), 0);
  for (std::size_t layer = 0; layer < layer_failed.size(); ++layer) {
    for (const auto& replica : replicas) layer_failed[layer] += replica->layers[layer].loss.failed;
    layer_failed[layer] /= static_cast<double>(replicas.size());
  }
  Json detail{{"layer_failed", to_numbers(layer_failed)},
              {"ir_rows_mean", number(mean(over_all(loads, ir_mean)))}};
  // Over layers that have IR rows at all.
  std::vector<double> spreads;
  for (const auto& replica : loads) {
    for (const routing::LayerImbalance& load : replica) {
      if (load.ir.mean > 0) spreads.push_back(load.ir.spread);
    }
  }
  detail["ir_rows_spread"] = number(spreads.empty() ? 0 : mean(spreads));
  detail["imbalance"] = imbalance(loads, rectified);
  detail["pair_bytes"] = pair_bytes(job, replicas, loads, row_bytes);
  detail["layers"] = layer_lines(job, replicas, loads, rectified);
  const std::size_t watched = most_uneven_layer(loads);
  detail["most_uneven_layer"] = watched;
  detail["replicas"] = replica_lines(job, replicas, loads, watched);
  const std::string basis = routing::loss_basis(job.scores, job.router);
  if (!basis.empty()) detail["loss_basis"] = basis;
  return detail;
}

}  // namespace moesim::report
