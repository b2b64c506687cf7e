#include "sim/routing/simulation/job_losses.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "sim/base/error.hpp"
#include "sim/routing/scores/logit_source.hpp"

namespace moesim::routing {

namespace {

void check_losses(const RoutingJob& job) {
  const RouterConfig& router = job.router;
  if (!router.kind->takes_best || router.expert_bias ||
      router.second_expert == SecondExpert::sampled || router.router_dtype != RouterDtype::fp32) {
    throw UsageError(fmt::format(
        "--losses: router {} does not choose the best experts by score alone: choose top1, top2, "
        "... without --expert-bias, --router-dtype and a sampled --second-expert",
        router.name()));
  }
  if (job.fidelity == Fidelity::counts) {
    throw UsageError("--losses: counts have no logits: use --fidelity tokens");
  }
}

}  // namespace

std::vector<AuxiliaryLosses> auxiliary_losses(const RoutingJob& job, int replica,
                                              std::int64_t sequence_tokens) {
  check_losses(job);
  std::vector<AuxiliaryLosses> losses;
  for (int layer = 0; layer < job.layers; ++layer) {
    const LogitSource logits(
        job.scores,
        LogitShape{job.experts, job.expert_parallel, job.gpus, job.expert_placement.get()},
        job.seed, static_cast<std::uint32_t>(replica), static_cast<std::uint32_t>(layer));
    if (!logits.has_logits()) {
      throw UsageError(fmt::format("--losses: {} holds choices, no logits", job.scores.name()));
    }
    AuxiliarySums sums(job.experts, job.router.top_k, sequence_tokens, job.router.score_function);
    for (int rank = 0; rank < job.expert_parallel; ++rank) {
      const std::int64_t tokens = job.tokens_of(rank);
      const auto index = static_cast<std::uint32_t>(rank);
      sums.add(logits.rank_logits(index, tokens, tile_kernels(best_simd_level())), tokens, rank);
    }
    losses.push_back(sums.losses());
  }
  return losses;
}

}  // namespace moesim::routing
