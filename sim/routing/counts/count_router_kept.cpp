#include <fmt/format.h>

#include <memory>

#include "sim/routing/counts/count_router.hpp"
#include "sim/routing/counts/draw_cache.hpp"
#include "sim/routing/jobs/shared_scores.hpp"
#include "sim/routing/tokens/choice_shares.hpp"

namespace moesim::routing {

// The key of what is drawn from the layer's logits alone, for any number of GPUs and tokens.
std::string CountRouter::scores_layer_key() const {
  const LogitShape shape = logit_shape(job_);
  return fmt::format("{} {} {} {} {} {} {} {}", scores_key(job_.scores), shape.top_k, shape.experts,
                     shape.expert_parallel,
                     shape.expert_placement == nullptr ? 0 : shape.expert_placement->digest(),
                     key_.seed, key_.replica, key_.layer);
}

std::vector<double> CountRouter::drawn_shares(int choices) const {
  if (draws_ == nullptr) return choice_shares(offsets_, noise_, choices);
  return draws_->shares
      .get(fmt::format("{} {}", scores_layer_key(), choices),
           [&] {
             return std::make_shared<const KeptShares>(
                 KeptShares{choice_shares(offsets_, noise_, choices)});
           })
      ->of;
}

void CountRouter::take_counts(Counts& counts) const {
  if (draws_ == nullptr || !counts.router.has_gate()) {
    draw_counts(counts, false);
    return;
  }
  counts.kept_key = fmt::format("{} {} {} {} {}", scores_layer_key(), job_.gpus,
                                job_.tokens_per_gpu, counts.top_k, counts.fill_in);
  const auto kept = draws_->routes.get(counts.kept_key, [&] {
    draw_counts(counts, false);
    return std::make_shared<const PackedRoutes>(
        PackedRoutes{PackedCounts(counts.primary), PackedCounts(counts.nominees)});
  });
  if (!counts.primary.empty()) return;
  counts.primary = kept->primary.counts();
  counts.nominees = kept->nominees.counts();
}

const std::vector<std::int32_t>& CountRouter::split_of(Counts& counts, CapacityScope scope) const {
  std::vector<std::int32_t>& split = counts.split[static_cast<int>(scope)];
  if (!split.empty()) return split;
  if (draws_ == nullptr || counts.kept_key.empty()) {
    draw_split(counts, scope, split);
    return split;
  }
  const auto kept =
      draws_->splits.get(fmt::format("{} {}", counts.kept_key, static_cast<int>(scope)), [&] {
        draw_split(counts, scope, split);
        return std::make_shared<const PackedCounts>(split);
      });
  if (split.empty()) split = kept->counts();
  return split;
}

// Which tokens a sample has depends on how many the job has, behind which they are.
SampledLayer CountRouter::drawn_sample(const RoutingJob& job) const {
  if (draws_ == nullptr) return draw_sample(job);
  RoutingJob alike = job.router.drops ? chosen_alike(job) : job;
  alike.gpus_per_domain = 0;
  alike.layers = 0;
  alike.count_copies = false;
  alike.with_losses = true;
  return *draws_->samples.get(fmt::format("{} {} {}", alike.key(), key_.replica, key_.layer), [&] {
    return std::make_shared<const SampledLayer>(draw_sample(job));
  });
}

}  // namespace moesim::routing
