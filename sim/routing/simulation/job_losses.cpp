#include "sim/routing/simulation/job_losses.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "sim/base/error.hpp"
#include "sim/routing/scores/logit_source.hpp"

namespace moesim::routing {

namespace {

void check_losses(const RoutingJob& job) {
  const RouterConfig& router = job.router;
  if (!router.scores_experts() || !router.chooses_top_k() || !router.takes_best()) {
    throw UsageError(fmt::format(
        "--losses: router {} does not choose the best experts by a softmax: choose top1, top2, ...",
        router.name()));
  }
  if (job.fidelity == Fidelity::counts) {
    throw UsageError("--losses: counts have no logits: use --fidelity tokens");
  }
}

}  // namespace

std::vector<AuxiliaryLosses> auxiliary_losses(const RoutingJob& job, int replica) {
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
    AuxiliarySums sums(job.experts, job.router.top_k);
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
