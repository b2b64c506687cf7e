#include "sim/routing/scores/counted_popularity.hpp"

#include <algorithm>
#include <boost/math/special_functions/erf.hpp>
#include <cmath>
#include <limits>

#include "sim/routing/scores/race.hpp"
#include "sim/routing/tokens/choice_shares.hpp"

namespace moesim::routing {

namespace {

// The normal that is exceeded with this probability, negated: of an offset, if the score that the
// last choice needs were fixed.
double offset_of(double inclusion) { return -M_SQRT2 * boost::math::erfc_inv(2 * inclusion); }

std::vector<double> inclusions_of(const std::vector<double>& offsets, int top_k) {
  const std::vector<float> rounded(offsets.begin(), offsets.end());
  const std::vector<double> shares = choice_shares(rounded, Noise::normal, top_k);
  std::vector<double> inclusions(offsets.size(), 0.0);
  for (std::size_t at = 0; at < shares.size(); ++at) inclusions[at % offsets.size()] += shares[at];
  return inclusions;
}

// Fixed-point iteration: an offset changes by the missing probability, as if the score that the
// last choice needs were fixed. `shares` are positive, more than `top_k` of them.
std::vector<double> normal_offsets(const std::vector<double>& shares, int top_k) {
  constexpr int most_rounds = 60;
  const std::vector<double> wanted = capped_inclusions(shares, top_k);
  std::vector<double> offsets;
  for (const double inclusion : wanted) offsets.push_back(offset_of(inclusion));
  for (int round = 0; round < most_rounds; ++round) {
    const std::vector<double> reached = inclusions_of(offsets, top_k);
    double off = 0;
    for (std::size_t expert = 0; expert < offsets.size(); ++expert) {
      const double now = std::clamp(reached[expert], 1e-12, 1 - 1e-9);
      offsets[expert] += offset_of(wanted[expert]) - offset_of(now);
      off = std::max(off, std::abs(now - wanted[expert]));
    }
    if (off < 2e-5) break;
  }
  const double largest = *std::max_element(offsets.begin(), offsets.end());
  for (double& offset : offsets) offset -= largest;
  return offsets;
}

}  // namespace

std::vector<double> counted_offsets(std::span<const double> counts, int top_k) {
  std::vector<double> shares;
  for (const double count : counts) {
    if (count > 0) shares.push_back(count);
  }
  // With as many experts as choices each is chosen, whatever its offset.
  const std::vector<double> offsets = static_cast<std::size_t>(top_k) < shares.size()
                                          ? normal_offsets(shares, top_k)
                                          : std::vector<double>(shares.size(), 0.0);
  std::vector<double> result;
  std::size_t next = 0;
  for (const double count : counts) {
    result.push_back(count > 0 ? offsets[next++] : -std::numeric_limits<double>::infinity());
  }
  return result;
}

const std::vector<double>& CountedPopularity::offsets(std::uint32_t layer, int top_k) const {
  const std::pair key{layer % layers_.size(), top_k};
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = offsets_.find(key); known != offsets_.end()) return known->second;
  }
  std::vector<double> offsets = counted_offsets(layers_[key.first], top_k);
  const std::lock_guard lock(mutex_);
  return offsets_.emplace(key, std::move(offsets)).first->second;
}

}  // namespace moesim::routing
