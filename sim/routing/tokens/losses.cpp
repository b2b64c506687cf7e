#include "sim/routing/tokens/losses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/tokens/softmax.hpp"

namespace moesim::routing {

AuxiliaryLosses auxiliary_losses(std::span<const float> logits, std::int64_t tokens, int experts,
                                 int rank) {
  const auto width = static_cast<std::size_t>(experts);
  if (logits.size() != static_cast<std::size_t>(tokens) * width) {
    throw UsageError(
        fmt::format("{} logits for {} tokens and {} experts", logits.size(), tokens, experts));
  }
  AuxiliaryLosses losses;
  if (tokens == 0) return losses;
  std::vector<float> probabilities(width), scratch(width);
  std::vector<double> mass(width, 0.0);
  std::vector<std::int64_t> first_choices(width, 0);
  double squares = 0;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const float* row = logits.data() + static_cast<std::size_t>(token) * width;
    float parts[2];
    if (!softmax(row, experts, probabilities.data(), scratch.data(), parts)) {
      throw UsageError(
          fmt::format("the logits of rank {}, token {} hold NaN or +inf", rank, token));
    }
    ++first_choices[static_cast<std::size_t>(std::max_element(row, row + width) - row)];
    for (std::size_t expert = 0; expert < width; ++expert) mass[expert] += probabilities[expert];
    const double log_sum = static_cast<double>(parts[0]) + std::log(static_cast<double>(parts[1]));
    squares += log_sum * log_sum;
  }
  const auto count = static_cast<double>(tokens);
  for (std::size_t expert = 0; expert < width; ++expert) {
    losses.balance += static_cast<double>(first_choices[expert]) / count * (mass[expert] / count);
  }
  losses.balance *= static_cast<double>(experts);
  losses.z = squares / count;
  return losses;
}

}  // namespace moesim::routing
