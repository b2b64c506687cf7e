#include "sim/routing/tokens/gradient.hpp"

#include <cstddef>

namespace moesim::routing {

std::vector<double> logit_gradient(std::span<const double> probabilities,
                                   std::span<const ProcessedRow> rows, Normaliser normaliser) {
  std::vector<double> gradient(probabilities.size(), 0.0);
  double mass = 0;
  for (const ProcessedRow& row : rows) mass += row.mass;
  if (!(mass > 0)) return gradient;
  double mean = 0;  // v
  for (const ProcessedRow& row : rows) mean += row.mass / mass * row.upstream;
  const bool constant = normaliser == Normaliser::straight_through;
  for (const ProcessedRow& row : rows) {
    gradient[static_cast<std::size_t>(row.expert)] +=
        row.mass / mass * (row.upstream - (constant ? 0.0 : mean));
  }
  if (!constant) return gradient;
  for (std::size_t expert = 0; expert < gradient.size(); ++expert) {
    gradient[expert] -= probabilities[expert] * mean;
  }
  return gradient;
}

}  // namespace moesim::routing
