#include "sim/routing/tokens/pair_counts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moesim::routing {

namespace {

// Scales the symmetric matrix `pairs` so that row e sums to (top_k - 1) inclusion[e], as for tokens
// that choose `top_k` experts, e with probability inclusion[e].
void scale_to(const std::vector<double>& inclusion, int top_k, std::vector<double>& pairs) {
  const std::size_t experts = inclusion.size();
  std::vector<double> scale(experts);
  constexpr int most_rounds = 60;
  for (int round = 0; round < most_rounds; ++round) {
    double off = 0;
    for (std::size_t row = 0; row < experts; ++row) {
      const auto begin = pairs.begin() + static_cast<std::ptrdiff_t>(row * experts);
      const double sum = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(experts), 0.0);
      const double wanted = (top_k - 1) * inclusion[row];
      scale[row] = sum > 0 ? std::sqrt(wanted / sum) : 0.0;
      off = std::max(off, std::abs(sum - wanted));
    }
    if (off < 1e-5) break;
    for (std::size_t row = 0; row < experts; ++row) {
      for (std::size_t column = 0; column < experts; ++column) {
        pairs[row * experts + column] *= scale[row] * scale[column];
      }
    }
  }
}

// [expert, expert] The probability that a token chooses both if only the popularity of each
// matters: fixed-size sampling with maximum entropy, to first order in 1 / d (Hajek 1964), pi_e
// pi_f (1 - (1 - pi_e) (1 - pi_f) / d), d = sum pi (1 - pi); then scaled to the required sums,
// which is exact for two choices. Where the first order is not positive, a fraction of the product
// is used.
std::vector<double> independent_pairs(const std::vector<double>& inclusion, int top_k) {
  const std::size_t experts = inclusion.size();
  double scatter = 0;
  for (const double pi : inclusion) scatter += pi * (1 - pi);
  std::vector<double> pairs(experts * experts, 0.0);
  constexpr double least_part = 0.01;
  for (std::size_t one = 0; one < experts; ++one) {
    for (std::size_t other = 0; other < experts; ++other) {
      if (one == other) continue;
      const double rivals = (1 - inclusion[one]) * (1 - inclusion[other]);
      const double part = scatter > 0 ? 1 - rivals / scatter : 1.0;
      pairs[one * experts + other] = inclusion[one] * inclusion[other] * std::max(least_part, part);
    }
  }
  scale_to(inclusion, top_k, pairs);
  return pairs;
}

}  // namespace

PairCounts::PairCounts(int experts) : experts_(static_cast<std::size_t>(experts)) {
  for (Half& half : halves_) {
    half.pairs.assign(experts_ * experts_, 0.0);
    half.expected.assign(experts_ * experts_, 0.0);
  }
}

void PairCounts::add(const ChoiceTable& table) {
  const auto tokens = static_cast<std::size_t>(table.tokens());
  add(table, 0, tokens / 2, halves_[0]);
  add(table, tokens / 2, tokens, halves_[1]);
}

void PairCounts::add(const ChoiceTable& table, std::size_t first, std::size_t last, Half& half) {
  if (first == last) return;
  std::vector<double> inclusion(experts_, 0.0);
  const double tokens = static_cast<double>(last - first);
  for (int one = 0; one < table.choices(); ++one) {
    for (std::size_t token = first; token < last; ++token) {
      const std::size_t expert = table.expert(one)[token];
      inclusion[expert] += 1 / tokens;
      for (int other = 0; other < one; ++other) {
        const std::size_t fellow = table.expert(other)[token];
        half.pairs[expert * experts_ + fellow] += 1;
        half.pairs[fellow * experts_ + expert] += 1;
      }
    }
  }
  const std::vector<double> expected = independent_pairs(inclusion, table.choices());
  for (std::size_t at = 0; at < expected.size(); ++at) half.expected[at] += tokens * expected[at];
}

double PairCounts::excess() const {
  const auto& [first, second] = halves_;
  double products = 0;
  double whole = 0;
  for (std::size_t one = 0; one < experts_; ++one) {
    for (std::size_t other = 0; other < one; ++other) {
      const std::size_t at = one * experts_ + other;
      const double weight = 1 / (1 + first.expected[at] + second.expected[at]);
      products += weight * (first.pairs[at] - first.expected[at]) *
                  (second.pairs[at] - second.expected[at]);
      whole += weight * first.expected[at] * second.expected[at];
    }
  }
  return whole > 0 ? products / whole : 0.0;
}

}  // namespace moesim::routing
