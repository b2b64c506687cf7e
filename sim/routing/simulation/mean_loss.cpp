#include "sim/routing/simulation/mean_loss.hpp"

#include <vector>

namespace moesim::routing {

TokenLoss mean_loss(std::span<const LayerRouting> layers) {
  std::vector<TokenLoss> losses;
  losses.reserve(layers.size());
  for (const LayerRouting& layer : layers) losses.push_back(layer.loss);
  return mean_loss(losses);
}

TokenLoss mean_loss(std::span<const TokenLoss> losses) {
  TokenLoss mean;
  if (losses.empty()) return mean;
  const auto count = static_cast<double>(losses.size());
  const auto average = [&](double TokenLoss::*figure) {
    for (const TokenLoss& loss : losses) mean.*figure += loss.*figure / count;
  };
  const auto average_if_there = [&](std::optional<double> TokenLoss::*figure) {
    if (!(losses.front().*figure).has_value()) return;
    double sum = 0;
    for (const TokenLoss& loss : losses) sum += (loss.*figure).value_or(0.0) / count;
    mean.*figure = sum;
  };
  for (const auto figure :
       {&TokenLoss::failed, &TokenLoss::partial, &TokenLoss::lost_mass, &TokenLoss::unrouted,
        &TokenLoss::residual_loss, &TokenLoss::not_chosen, &TokenLoss::padded}) {
    average(figure);
  }
  for (const auto figure :
       {&TokenLoss::fill_failed, &TokenLoss::failed_attempted, &TokenLoss::duplicate_ir}) {
    average_if_there(figure);
  }
  return mean;
}

}  // namespace moesim::routing
