#include "sim/routing/tokens/losses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/routing/tokens/softmax.hpp"

namespace moesim::routing {

AuxiliarySums::AuxiliarySums(int experts, int top_k, std::int64_t sequence_tokens,
                             ScoreFunction scores)
    : experts_(static_cast<std::size_t>(experts)),
      top_k_(static_cast<std::size_t>(top_k)),
      sequence_tokens_(sequence_tokens),
      scores_(scores),
      sums_(no_sums()),
      probabilities_(experts_),
      scratch_(experts_),
      order_(experts_) {}

AuxiliarySums::Sums AuxiliarySums::no_sums() const {
  return {0, std::vector<double>(experts_, 0.0), std::vector<std::int64_t>(experts_, 0),
          std::vector<std::int64_t>(experts_, 0)};
}

void AuxiliarySums::add(std::span<const float> logits, std::int64_t tokens, int rank,
                        const ChosenExperts& chosen) {
  if (logits.size() != static_cast<std::size_t>(tokens) * experts_) {
    throw UsageError(
        fmt::format("{} logits for {} tokens and {} experts", logits.size(), tokens, experts_));
  }
  Sums sequence = no_sums();
  for (std::int64_t token = 0; token < tokens; ++token) {
    const float* row = logits.data() + static_cast<std::size_t>(token) * experts_;
    float parts[2];
    const auto width = static_cast<int>(experts_);
    if (!softmax(row, width, probabilities_.data(), scratch_.data(), parts)) {
      throw UsageError(
          fmt::format("the logits of rank {}, token {} hold NaN or +inf", rank, token));
    }
    // Logits that are all -inf count as all 0.
    const double highest = std::isinf(parts[0]) ? 0 : static_cast<double>(parts[0]);
    const double log_sum = highest + std::log(static_cast<double>(parts[1]));
    squares_ += log_sum * log_sum;
    if (chosen.expert == nullptr) {
      find_best(row);
    } else {
      for (std::size_t choice = 0; choice < top_k_; ++choice) {
        order_[choice] = chosen.expert[choice * chosen.stride + static_cast<std::size_t>(token)];
      }
    }
    add_token(row, sequence);
    if (sequence.tokens != sequence_tokens_) continue;
    close_sequence(sequence);
    sequence = no_sums();
  }
  close_sequence(sequence);
}

void AuxiliarySums::find_best(const float* logits) {
  std::iota(order_.begin(), order_.end(), 0U);
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(top_k_),
                    order_.end(), [logits](std::uint32_t one, std::uint32_t other) {
                      return logits[one] != logits[other] ? logits[one] > logits[other]
                                                          : one < other;
                    });
}

// order_ has its choices, probabilities_ are its softmax.
void AuxiliarySums::add_token(const float* logits, Sums& sums) {
  double whole = 1;
  if (scores_ == ScoreFunction::sigmoid) {
    whole = 0;
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      probabilities_[expert] = sigmoid(logits[expert]);
      whole += static_cast<double>(probabilities_[expert]);
    }
    if (whole == 0) {  // all alike
      std::fill(probabilities_.begin(), probabilities_.end(), 1.0F);
      whole = static_cast<double>(experts_);
    }
  }
  ++sums.tokens;
  ++sums.first[order_[0]];
  for (std::size_t choice = 0; choice < top_k_; ++choice) ++sums.all[order_[choice]];
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    sums.mass[expert] += static_cast<double>(probabilities_[expert]) / whole;
  }
}

// E sum_e (share of choices) (mean probability).
double AuxiliarySums::balance(const Sums& sums, const std::vector<std::int64_t>& choices,
                              double per_token) const {
  const auto count = static_cast<double>(sums.tokens);
  double sum = 0;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    sum += static_cast<double>(choices[expert]) * sums.mass[expert];
  }
  return static_cast<double>(experts_) * sum / (count * count * per_token);
}

void AuxiliarySums::close_sequence(const Sums& sequence) {
  if (sequence.tokens == 0) return;
  of_sequences_ += balance(sequence, sequence.all, static_cast<double>(top_k_));
  ++sequences_;
  sums_.tokens += sequence.tokens;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    sums_.mass[expert] += sequence.mass[expert];
    sums_.first[expert] += sequence.first[expert];
    sums_.all[expert] += sequence.all[expert];
  }
}

AuxiliaryLosses AuxiliarySums::losses() const {
  AuxiliaryLosses losses;
  if (sums_.tokens == 0) return losses;
  losses.balance = balance(sums_, sums_.first, 1);
  losses.balance_all = balance(sums_, sums_.all, static_cast<double>(top_k_));
  losses.balance_sequence = of_sequences_ / static_cast<double>(sequences_);
  losses.z = squares_ / static_cast<double>(sums_.tokens);
  return losses;
}

AuxiliaryLosses auxiliary_losses(std::span<const float> logits, std::int64_t tokens, int experts,
                                 int rank, int top_k) {
  AuxiliarySums sums(experts, top_k);
  sums.add(logits, tokens, rank);
  return sums.losses();
}

}  // namespace moesim::routing
