#include "sim/training/drawn/drawn_losses.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/layer_router.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/drawn/routing_misfit.hpp"
#include "sim/training/drawn/sampled_rows.hpp"

namespace moesim::training {
namespace {

using routing::LayerRouting;

// The losses of jobs that share their logits.
std::vector<ExpectedLoss> shared_losses(const std::vector<routing::RoutingJob>& jobs,
                                        const std::vector<int>& replicas, int most_layers,
                                        routing::DrawCache* draws) {
  const int layers = jobs.front().layers;
  const int drawn = std::min(layers, most_layers);
  std::vector<std::vector<LayerRouting>> by_job(jobs.size());
  std::vector<LayerRouting> results(jobs.size());
  routing::LayerRouter router(best_simd_level(), draws);
  for (int at = 0; at < drawn; ++at) {
    const auto layer = static_cast<int>(std::int64_t{at} * layers / drawn);
    std::vector<std::vector<routing::TokenLoss>> of_layer(jobs.size());
    for (const int replica : replicas) {
      router.route(jobs, replica, layer, results);
      for (std::size_t job = 0; job < jobs.size(); ++job) {
        of_layer[job].push_back(results[job].loss);
      }
    }
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      by_job[job].emplace_back().loss = routing::mean_loss(of_layer[job]);
    }
  }
  std::vector<ExpectedLoss> losses;
  for (const std::vector<LayerRouting>& of_job : by_job) {
    ExpectedLoss& found = losses.emplace_back();
    found.loss = routing::mean_loss(of_job);
    double squares = 0;
    for (const LayerRouting& layer : of_job) {
      squares += std::pow(layer.loss.residual_loss - found.loss.residual_loss, 2);
    }
    if (drawn > 1) found.error = std::sqrt(squares / (drawn - 1.0) / drawn);
  }
  return losses;
}

}  // namespace

std::vector<ExpectedLoss> drawn_losses(std::span<const TrainingJob> jobs, int most_layers,
                                       routing::DrawCache* draws) {
  std::vector<ExpectedLoss> losses(jobs.size());
  // Jobs by (logits, replicas).
  std::map<std::pair<std::string, std::vector<int>>, std::vector<std::size_t>> together;
  std::vector<routing::RoutingJob> routings(jobs.size());
  for (std::size_t at = 0; at < jobs.size(); ++at) {
    check_drawn(*jobs[at].routing);
    if (takes_sample(jobs[at])) {
      losses[at].loss = DrawnLoads(jobs[at], true, draws).figures().loss;
      continue;
    }
    routings[at] = block_routing(jobs[at]);
    check_routing(routings[at], jobs[at]);
    together[{routings[at].logits_key(), drawn_replicas(jobs[at])}].push_back(at);
  }
  for (const auto& [key, members] : together) {
    std::vector<routing::RoutingJob> sharing;
    for (const std::size_t at : members) sharing.push_back(routings[at]);
    const std::vector<ExpectedLoss> drawn = shared_losses(sharing, key.second, most_layers, draws);
    for (std::size_t at = 0; at < members.size(); ++at) losses[members[at]] = drawn[at];
  }
  return losses;
}

}  // namespace moesim::training
