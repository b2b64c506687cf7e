#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "sim/routing/counts/count_growth.hpp"
#include "sim/routing/counts/count_router.hpp"
#include "sim/routing/counts/sample_losses.hpp"
#include "sim/routing/counts/sampled_counts.hpp"
#include "sim/routing/groups/bias_training.hpp"
#include "sim/routing/groups/group_logits.hpp"
#include "sim/routing/groups/layer_sampler.hpp"
#include "sim/routing/tokens/choice_shares.hpp"

namespace moesim::routing {

SampledLayer CountRouter::draw_sample(const RoutingJob& job) const {
  const RouterConfig& router = job.router;
  StreamKey key = key_;
  key.rank = sample_plane;
  const SeenLogits drawn(job, *logits_, 0, kernels_);
  const GroupLogits& seen = drawn.by(router);
  const KindShape shape{router, job.experts, job.expert_parallel, kernels_};
  const std::int64_t tokens = sampled_tokens(job.experts, router.top_k);
  const auto training = bias_training(job, {{}, key.seed, key.replica, key.layer}, kernels_);
  LayerSample sample =
      training ? sample_layer(shape, TrainedOnOthers(seen, training->logits()), key, tokens)
               : sample_layer(shape, seen, key, tokens);
  std::vector<double> shares = std::move(sample.shares);
  if (shares.empty() && router.takes_best() && !logits_->has_token_types()) {
    const std::vector<double> of_choices = choice_shares(offsets_, noise_, router.top_k);
    shares.assign(static_cast<std::size_t>(job.experts), 0.0);
    for (std::size_t at = 0; at < of_choices.size(); ++at) {
      shares[at % shares.size()] += of_choices[at];
    }
  } else if (shares.empty()) {
    shares = smoothed_shares(sample, offsets_, router.groups, router.top_k);
  }
  return {std::move(sample), std::move(shares)};
}

void CountRouter::draw_sampled(const RoutingJob& job, Counts& counts) const {
  const auto experts = static_cast<std::size_t>(job.experts);
  SampledLayer drawn = drawn_sample(job);
  counts.loss = drawn.sample.loss;
  if (job.router.drops && job.with_losses) counts.sample = drawn.sample;
  ExpertPlaces places{job.experts, job.expert_parallel, 0, job.router.groups};
  if (job.count_copies) {
    places.ranks_of_node = job.gpus_per_domain > 0
                               ? std::min(job.gpus_per_domain, job.expert_parallel)
                               : job.expert_parallel;
  }
  SampledCounts law(std::move(drawn.sample), drawn.shares, places, level_);
  const auto gpus = static_cast<std::size_t>(job.gpus);
  counts.primary.resize(gpus * experts);
  const auto ranks = static_cast<std::size_t>(places.ranks);
  const std::size_t nodes = job.count_copies ? static_cast<std::size_t>(places.nodes()) : 0;
  if (job.count_copies) {
    counts.copies.to_gpu.resize(gpus * ranks);
    counts.copies.to_node.resize(gpus * nodes);
  }
  StreamKey key = key_;
  key.rank = tile_plane;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    SampledCounts::Output out{counts.primary.data() + gpu * experts, nullptr, nullptr};
    if (job.count_copies) {
      out.to_gpu = counts.copies.to_gpu.data() + gpu * ranks;
      out.to_node = counts.copies.to_node.data() + gpu * nodes;
    }
    law.draw(key, static_cast<std::uint32_t>(gpu), job.tokens_of(static_cast<int>(gpu)), out);
  }
}

RoutingJob CountRouter::chosen_alike(RoutingJob job) {
  const RouterConfig usual;
  RouterConfig& router = job.router;
  router.capacity_factor = usual.capacity_factor;
  router.capacity_convention = usual.capacity_convention;
  router.min_capacity = usual.min_capacity;
  router.capacity_alignment = usual.capacity_alignment;
  router.priority = usual.priority;
  router.dialect = usual.dialect;
  return job;
}

std::string CountRouter::sampled_key(const RoutingJob& job) {
  return job.router.drops ? chosen_alike(job).key() : job.key();
}

// Rows and the shares of failed and padded are those of the counts. What the capacity loses besides
// is in proportion to what it loses of the sample, whose error is mainly in how many routes fail.
void CountRouter::set_losses_of_sample(const RoutingJob& job, LayerRouting& result) {
  if (!job.with_losses) return;
  TokenLoss& loss = result.loss;
  const Counts& counts = counts_of(job);
  StreamKey chance = key_;
  chance.rank = chance_plane;
  const TokenLoss found = losses_of_sample(
      {job.router, counts.sample, job.experts, job.tokens_per_gpu}, chance, kernels_);
  const auto scaled = [&](double lost) {
    return found.failed > 0 ? std::min(1.0, lost * loss.failed / found.failed) : loss.failed;
  };
  const int top_k = job.router.top_k;
  loss.partial = fit_growth(false, found.failed, found.partial, top_k)(loss.failed);
  loss.unrouted = fit_growth(true, found.failed, found.unrouted, top_k)(loss.failed);
  loss.lost_mass = scaled(found.lost_mass);
  loss.not_chosen = counts.loss.not_chosen;
  const double kept = 1 - loss.not_chosen;  // no more can be dropped
  loss.residual_loss =
      loss.not_chosen + std::min(kept, scaled(found.residual_loss - found.not_chosen));
}

// Where a token has a single expert every kept route is a token.
void CountRouter::count_copies(const RoutingJob& job, LayerRouting& result) {
  const auto experts = static_cast<std::size_t>(job.experts);
  const auto ranks = static_cast<std::size_t>(job.expert_parallel);
  const auto nodes = static_cast<std::size_t>(group_nodes(job));
  const std::size_t per_rank = experts / ranks;
  result.copies.to_gpu.assign(static_cast<std::size_t>(job.gpus) * ranks, 0);
  result.copies.to_node.assign(static_cast<std::size_t>(job.gpus) * nodes, 0);
  for (std::size_t gpu = 0; gpu < static_cast<std::size_t>(job.gpus); ++gpu) {
    const std::size_t first = gpu / ranks * ranks;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::int32_t* rows = result.kept_rows.data() + gpu * experts + rank * per_rank;
      const std::int32_t sum = std::accumulate(rows, rows + per_rank, 0);
      result.copies.to_gpu[gpu * ranks + rank] = sum;
      result.copies.to_node[gpu * nodes + node_in_group(job, static_cast<int>(first + rank))] +=
          sum;
    }
  }
}

}  // namespace moesim::routing
