#include "sim/routing/simulation/imbalance.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::routing {

Imbalance imbalance(std::span<const std::int64_t> loads) {
  std::vector<std::int64_t> sorted(loads.begin(), loads.end());
  std::sort(sorted.begin(), sorted.end());
  Imbalance result;
  const auto count = static_cast<double>(sorted.size());
  double sum = 0;
  double ranked = 0;  // sum over loads, smallest first, of (place from 1) times load
  for (std::size_t place = 0; place < sorted.size(); ++place) {
    const auto load = static_cast<double>(sorted[place]);
    sum += load;
    ranked += static_cast<double>(place + 1) * load;
  }
  if (sum <= 0) return result;
  result.mean = sum / count;
  result.busiest_over_mean = static_cast<double>(sorted.back()) / result.mean;
  // Gini's mean difference over twice the mean, from order statistics.
  result.gini = 2 * ranked / (count * sum) - (count + 1) / count;
  double squares = 0;
  for (const std::int64_t load : sorted) {
    const double off = static_cast<double>(load) - result.mean;
    squares += off * off;
  }
  result.spread = std::sqrt(squares / count) / result.mean;
  return result;
}

std::vector<std::int64_t> computed_rows(const RoutingJob& job, const LayerRouting& layer) {
  const auto gpus = static_cast<std::size_t>(job.gpus);
  const auto experts = static_cast<std::size_t>(job.experts);
  const auto ranks = static_cast<std::size_t>(job.expert_parallel);
  const std::size_t per_rank = experts / ranks;
  std::vector<std::int64_t> rows(gpus, 0);
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    const std::size_t first = gpu / ranks * ranks;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      rows[first + expert / per_rank] += layer.kept_rows[gpu * experts + expert];
    }
    if (!layer.ir_rows.empty()) rows[gpu] += layer.ir_rows[gpu];
  }
  return rows;
}

std::vector<std::int64_t> pair_rows(const RoutingJob& job, const LayerRouting& layer) {
  const auto experts = static_cast<std::size_t>(job.experts);
  const auto ranks = static_cast<std::size_t>(job.expert_parallel);
  const std::size_t per_rank = experts / ranks;
  std::vector<std::int64_t> rows;
  for (std::size_t gpu = 0; gpu < static_cast<std::size_t>(job.gpus); ++gpu) {
    for (std::size_t owner = 0; owner < ranks; ++owner) {
      if (owner == gpu % ranks) continue;
      std::int64_t sent = 0;
      for (std::size_t expert = owner * per_rank; expert < (owner + 1) * per_rank; ++expert) {
        sent += layer.kept_rows[gpu * experts + expert];
      }
      rows.push_back(sent);
    }
  }
  return rows;
}

std::vector<std::int64_t> pair_tokens(const RoutingJob& job, const LayerRouting& layer) {
  const auto ranks = static_cast<std::size_t>(job.expert_parallel);
  const std::vector<std::int32_t>& to_gpu = layer.copies.to_gpu;
  std::vector<std::int64_t> tokens;
  for (std::size_t cell = 0; cell < to_gpu.size(); ++cell) {
    if (cell / ranks % ranks != cell % ranks) tokens.push_back(to_gpu[cell]);
  }
  return tokens;
}

NodeTraffic node_traffic(const RoutingJob& job, const LayerRouting& layer) {
  NodeTraffic loads;
  if (layer.copies.to_node.empty()) return loads;
  const auto experts = static_cast<std::size_t>(job.experts);
  const auto nodes = static_cast<std::size_t>(group_nodes(job));
  const std::size_t per_rank = experts / static_cast<std::size_t>(job.expert_parallel);
  for (int gpu = 0; gpu < job.gpus; ++gpu) {
    const auto source = static_cast<std::size_t>(gpu);
    const int first = gpu / job.expert_parallel * job.expert_parallel;
    std::vector<std::int64_t> rows(nodes, 0);
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const int owner = first + static_cast<int>(expert / per_rank);
      rows[node_in_group(job, owner)] += layer.kept_rows[source * experts + expert];
    }
    const std::size_t last = node_in_group(job, first + job.expert_parallel - 1);
    for (std::size_t node = 0; node <= last; ++node) {
      if (node == node_in_group(job, gpu)) continue;
      loads.rows.push_back(rows[node]);
      loads.tokens.push_back(layer.copies.to_node[source * nodes + node]);
    }
  }
  return loads;
}

LayerImbalance layer_imbalance(const RoutingJob& job, const LayerRouting& layer) {
  const std::vector<std::int64_t> ir(layer.ir_rows.begin(), layer.ir_rows.end());
  const NodeTraffic nodes = node_traffic(job, layer);
  return {
      imbalance(layer.demand),          imbalance(computed_rows(job, layer)), imbalance(ir),
      imbalance(pair_rows(job, layer)), imbalance(pair_tokens(job, layer)),   imbalance(nodes.rows),
      imbalance(nodes.tokens)};
}

}  // namespace moesim::routing
