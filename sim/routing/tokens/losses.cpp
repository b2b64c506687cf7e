#include "sim/routing/tokens/losses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/routing/tokens/softmax.hpp"

namespace moesim::routing {

AuxiliarySums::AuxiliarySums(int experts, int top_k)
    : experts_(static_cast<std::size_t>(experts)),
      top_k_(static_cast<std::size_t>(top_k)),
      mass_(experts_, 0.0),
      first_(experts_, 0),
      all_(experts_, 0),
      probabilities_(experts_),
      scratch_(experts_),
      order_(experts_) {}

void AuxiliarySums::add(std::span<const float> logits, std::int64_t tokens, int rank) {
  if (logits.size() != static_cast<std::size_t>(tokens) * experts_) {
    throw UsageError(
        fmt::format("{} logits for {} tokens and {} experts", logits.size(), tokens, experts_));
  }
  for (std::int64_t token = 0; token < tokens; ++token) {
    const float* row = logits.data() + static_cast<std::size_t>(token) * experts_;
    float parts[2];
    const auto width = static_cast<int>(experts_);
    if (!softmax(row, width, probabilities_.data(), scratch_.data(), parts)) {
      throw UsageError(
          fmt::format("the logits of rank {}, token {} hold NaN or +inf", rank, token));
    }
    std::iota(order_.begin(), order_.end(), 0U);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(top_k_),
                      order_.end(), [row](std::uint32_t one, std::uint32_t other) {
                        return row[one] != row[other] ? row[one] > row[other] : one < other;
                      });
    ++first_[order_[0]];
    for (std::size_t choice = 0; choice < top_k_; ++choice) ++all_[order_[choice]];
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      mass_[expert] += probabilities_[expert];
    }
    const double log_sum = static_cast<double>(parts[0]) + std::log(static_cast<double>(parts[1]));
    squares_ += log_sum * log_sum;
  }
  tokens_ += tokens;
}

AuxiliaryLosses AuxiliarySums::losses() const {
  AuxiliaryLosses losses;
  if (tokens_ == 0) return losses;
  const auto count = static_cast<double>(tokens_);
  const double scale = static_cast<double>(experts_) / count;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    const double probability = mass_[expert] / count;
    losses.balance += scale * static_cast<double>(first_[expert]) * probability;
    losses.balance_all +=
        scale * static_cast<double>(all_[expert]) / static_cast<double>(top_k_) * probability;
  }
  losses.z = squares_ / count;
  return losses;
}

AuxiliaryLosses auxiliary_losses(std::span<const float> logits, std::int64_t tokens, int experts,
                                 int rank, int top_k) {
  AuxiliarySums sums(experts, top_k);
  sums.add(logits, tokens, rank);
  return sums.losses();
}

}  // namespace moesim::routing
