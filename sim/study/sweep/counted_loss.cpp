#include "sim/study/sweep/counted_loss.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/routing/routers/router_name.hpp"

namespace moesim::study {

double counted_loss(const routing::TokenLoss& loss, const routing::RouterConfig& router,
                    const model::Model& model) {
  if (!model.moe) return loss.residual_loss;
  const routing::RouterConfig own = routing::parse_router(model.moe->router, 0, model.moe->top_k);
  const bool is_own = router.name() == own.name() && router.top_k == own.top_k;
  const bool samples = router.second_expert == routing::SecondExpert::sampled;
  if (!is_own && !samples) return loss.residual_loss;
  const double dropped = loss.residual_loss - loss.not_chosen;
  constexpr double least = 1e-12;  // less is what both means were rounded by
  return router.has_capacity() && dropped > least ? dropped : 0;
}

double counted_loss(const training::TrainingJob& job, const training::TrainingStep& step) {
  if (!step.routing) return 0;
  return counted_loss(step.routing->loss, job.routing->router, *job.model);
}

std::string not_counted_text(const std::vector<StatedLoss>& losses) {
  std::vector<double> shares;
  for (const StatedLoss& loss : losses) {
    if (loss.counted < loss.residual) shares.push_back(loss.residual - loss.counted);
  }
  if (shares.empty()) return "";
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  const std::string text = fmt::format("{:.2f}", 100 * *least);
  const std::string last = fmt::format("{:.2f}", 100 * *most);
  return fmt::format(
      "token loss: not counted is {}{} % of the weight of a token's k best experts,\n  {} (column "
      "residual_loss has both)\n",
      text, text == last ? "" : " to " + last, not_chosen);
}

bool loses_clearly_less(double loss, double than) {
  constexpr double least_gain = 0.99;
  constexpr double least_points = 1e-4;
  return loss < least_gain * than && than - loss >= least_points;
}

}  // namespace moesim::study
