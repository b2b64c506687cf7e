#include "sim/routing/groups/bias_training.hpp"

#include <utility>

#include "sim/routing/jobs/shared_scores.hpp"
#include "sim/routing/rules/expert_bias.hpp"

namespace moesim::routing {
namespace {

RoutingJob with_scores(RoutingJob job, const ScoreSource& scores) {
  job.scores = scores;
  return job;
}

}  // namespace

BiasTraining::BiasTraining(const RoutingJob& job, const RouterContext& context,
                           const TileKernels& kernels)
    : job_(with_scores(job, *job.router.expert_bias->trained_on())),
      source_(job_.scores, logit_shape(job_), context.seed, context.replica, context.layer),
      seen_(job_, source_, 0, kernels) {}

std::unique_ptr<BiasTraining> bias_training(const RoutingJob& job, const RouterContext& context,
                                            const TileKernels& kernels) {
  const ExpertBias* const bias = job.router.expert_bias.get();
  if (bias == nullptr || bias->trained_on() == nullptr) return nullptr;
  if (scores_key(*bias->trained_on()) == scores_key(job.scores)) return nullptr;
  return std::make_unique<BiasTraining>(job, context, kernels);
}

void start_layer(KindRouter& router, const RoutingJob& job, const GroupLogits& seen,
                 const RouterContext& context, const TileKernels& kernels) {
  const auto training = bias_training(job, context, kernels);
  router.start_layer(training ? training->logits() : seen, context);
}

}  // namespace moesim::routing
