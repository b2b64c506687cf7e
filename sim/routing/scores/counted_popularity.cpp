#include "sim/routing/scores/counted_popularity.hpp"

#include <limits>

#include "sim/routing/scores/race.hpp"

namespace moesim::routing {

std::vector<double> counted_log_weights(std::span<const double> counts, int top_k) {
  std::vector<double> shares;
  for (const double count : counts) {
    if (count > 0) shares.push_back(count);
  }
  // With as many experts as choices each is chosen, whatever its weight.
  const std::vector<double> weights = static_cast<std::size_t>(top_k) < shares.size()
                                          ? race_log_weights(shares, top_k)
                                          : std::vector<double>(shares.size(), 0.0);
  std::vector<double> result;
  std::size_t next = 0;
  for (const double count : counts) {
    result.push_back(count > 0 ? weights[next++] : -std::numeric_limits<double>::infinity());
  }
  return result;
}

const std::vector<double>& CountedPopularity::log_weights(std::uint32_t layer, int top_k) const {
  const std::pair key{layer % layers_.size(), top_k};
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = weights_.find(key); known != weights_.end()) return known->second;
  }
  std::vector<double> weights = counted_log_weights(layers_[key.first], top_k);
  const std::lock_guard lock(mutex_);
  return weights_.emplace(key, std::move(weights)).first->second;
}

}  // namespace moesim::routing
