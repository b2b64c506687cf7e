#include "sim/routing/simulation/job_losses.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>

#include "sim/base/error.hpp"
#include "sim/routing/groups/bias_training.hpp"
#include "sim/routing/groups/group_logits.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/jobs/shared_scores.hpp"
#include "sim/routing/scores/logit_source.hpp"

namespace moesim::routing {

namespace {

void check_losses(const RoutingJob& job) {
  const RouterConfig& router = job.router;
  if (!router.scores_experts() || !router.chooses_top_k()) {
    throw UsageError(
        fmt::format("--losses: router {} does not give each token k experts by its scores: choose "
                    "top1, top2, ...",
                    router.asked_name()));
  }
  if (job.fidelity == Fidelity::counts) {
    throw UsageError("--losses: counts have no logits: use --fidelity tokens");
  }
}

// The losses of the groups of one layer, one after another.
class LayerLosses {
 public:
  LayerLosses(const RoutingJob& job, const LogitSource& source, RouterContext context,
              std::int64_t sequence_tokens)
      : job_(job),
        source_(source),
        context_(context),
        sequence_tokens_(sequence_tokens),
        kernels_(tile_kernels(best_simd_level())),
        router_(make_kind_router({job.router, job.experts, job.expert_parallel, kernels_, true})) {}

  AuxiliaryLosses of_group(int group) {
    const RouterConfig& router = job_.router;
    context_.place.first_gpu = group * job_.expert_parallel;
    if (router_ != nullptr) choose(group);
    // A layer that skips the exchange may choose fewer than k.
    const int choices = router_ == nullptr ? router.top_k : routes_.top_k;
    AuxiliarySums sums(
        job_.experts, choices, sequence_tokens_,
        router.kind->scores_by_sigmoid ? ScoreFunction::sigmoid : router.score_function);
    for (int rank = 0; rank < job_.expert_parallel; ++rank) {
      const int gpu = context_.place.first_gpu + rank;
      std::vector<float> logits =
          source_.rank_logits(static_cast<std::uint32_t>(gpu), job_.tokens_of(gpu), kernels_);
      if (router.router_dtype == RouterDtype::bf16) round_to_bf16(logits);
      sums.add(logits, job_.tokens_of(gpu), rank, chosen(rank));
    }
    return sums.losses();
  }

 private:
  // Chooses by the router's own rule, where it is not simply the k largest logits.
  void choose(int group) {
    const SeenLogits drawn(job_, source_, context_.place.first_gpu, kernels_);
    const GroupLogits& seen = drawn.by(job_.router);
    if (group == 0) start_layer(*router_, job_, seen, context_, kernels_);
    router_->decide(seen, context_);
    routes_.ranks = job_.expert_parallel;
    routes_.experts = job_.experts;
    routes_.top_k = job_.router.top_k;
    routes_.choices = job_.router.choices();
    routes_.tokens = static_cast<std::size_t>(seen.all_tokens());
    routes_.rank_begin.assign(1, 0);
    for (int rank = 0; rank < seen.ranks(); ++rank) {
      routes_.rank_begin.push_back(routes_.rank_begin.back() + seen.tokens(rank));
    }
    router_->collect(routes_);
  }

  ChosenExperts chosen(int rank) const {
    if (router_ == nullptr) return {};
    return {routes_.expert.data() + routes_.rank_begin[static_cast<std::size_t>(rank)],
            routes_.stride};
  }

  const RoutingJob& job_;
  const LogitSource& source_;
  RouterContext context_;
  std::int64_t sequence_tokens_;
  const TileKernels& kernels_;
  std::unique_ptr<KindRouter> router_;
  RoutedGroup routes_;
};

// A library balances the load of each group by itself; all groups have as many tokens.
AuxiliaryLosses mean_over_groups(LayerLosses& layer, int groups) {
  AuxiliaryLosses mean;
  for (int group = 0; group < groups; ++group) {
    const AuxiliaryLosses each = layer.of_group(group);
    mean.balance += each.balance / groups;
    mean.balance_all += each.balance_all / groups;
    mean.balance_sequence += each.balance_sequence / groups;
    mean.z += each.z / groups;
  }
  return mean;
}

}  // namespace

std::vector<AuxiliaryLosses> auxiliary_losses(const RoutingJob& job, int replica,
                                              std::int64_t sequence_tokens) {
  check_losses(job);
  std::vector<AuxiliaryLosses> losses;
  for (int layer = 0; layer < job.layers; ++layer) {
    const LogitSource logits(job.scores, logit_shape(job), job.seed,
                             static_cast<std::uint32_t>(replica),
                             static_cast<std::uint32_t>(layer));
    if (!logits.has_logits()) {
      throw UsageError(fmt::format("--losses: {} holds choices, no logits", job.scores.name()));
    }
    const RouterContext context{{0, job.gpus_per_domain},
                                job.seed,
                                static_cast<std::uint32_t>(replica),
                                static_cast<std::uint32_t>(layer)};
    LayerLosses of_layer(job, logits, context, sequence_tokens);
    losses.push_back(mean_over_groups(of_layer, job.gpus / job.expert_parallel));
  }
  return losses;
}

}  // namespace moesim::routing
