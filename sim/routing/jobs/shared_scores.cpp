#include "sim/routing/jobs/shared_scores.hpp"

#include <algorithm>

namespace moesim::routing {

ScoreSource shared_scores(std::span<const RoutingJob> jobs) {
  const ScoreSource& scores = jobs.front().scores;
  const bool unread = std::none_of(
      jobs.begin(), jobs.end(), [](const RoutingJob& job) { return job.router.scores_experts(); });
  const bool recorded = scores.kind == ScoreSource::Kind::counts || scores.trace != nullptr;
  if (!unread || !recorded) return scores;
  ScoreSource balanced;
  balanced.kind = ScoreSource::Kind::balanced;
  return balanced;
}

LogitShape logit_shape(const RoutingJob& job) {
  return {job.experts,      job.expert_parallel, job.gpus, job.expert_placement.get(),
          job.router.top_k, job.slices};
}

}  // namespace moesim::routing
