#include "sim/study/search/counted_loss.hpp"

#include <algorithm>

#include "sim/routing/routers/router_name.hpp"

namespace moesim::study {

double counted_loss(const routing::TokenLoss& loss, const routing::RouterConfig& router,
                    const model::Model& model) {
  if (!model.moe) return loss.residual_loss;
  const routing::RouterConfig own = routing::parse_router(model.moe->router, 0, model.moe->top_k);
  const bool is_own = router.name() == own.name() && router.top_k == own.top_k;
  if (!is_own) return loss.residual_loss;
  return router.has_capacity() ? std::max(0.0, loss.residual_loss - loss.not_chosen) : 0;
}

double counted_loss(const training::TrainingJob& job, const training::TrainingStep& step) {
  if (!step.routing) return 0;
  return counted_loss(step.routing->loss, job.routing->router, *job.model);
}

bool loses_clearly_less(double loss, double than) {
  constexpr double least_gain = 0.99;
  constexpr double least_points = 1e-4;
  return loss < least_gain * than && than - loss >= least_points;
}

}  // namespace moesim::study
