#include "sim/routing/scores/unknown_popularity.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::routing {
namespace {

// Ranks that the streams of popularities themselves do not use.
constexpr std::uint32_t training_stream = 2;
constexpr std::uint32_t layer_stream = 3;
constexpr std::uint32_t loss_stream = 4;

// One draw of a sequence that fills (0, 1) evenly, from a place that the seed decides.
double evenly(std::uint64_t seed, std::uint32_t replica, std::uint32_t which, double step) {
  Stream start(StreamKey{seed, Purpose::expert_bias, 0, 0, which});
  const double at = start.uniform() + step * replica;
  constexpr double margin = 1e-12;
  return std::clamp(at - std::floor(at), margin, 1 - margin);
}

}  // namespace

double drawn_spread(double unbalanced, std::uint64_t seed, std::uint32_t replica,
                    std::uint32_t layer) {
  const bool lacks_loss = evenly(seed, replica, loss_stream, std::numbers::sqrt2 - 1) < unbalanced;
  const PopularitySpreads& spreads = lacks_loss ? unbalanced_spreads : balanced_spreads;
  const double training =
      normal_quantile(evenly(seed, replica, training_stream, std::numbers::phi - 1));
  Stream own(StreamKey{seed, Purpose::expert_bias, replica, layer, layer_stream});
  return spreads.median * std::exp(spreads.trainings * training + spreads.layers * own.normal());
}

}  // namespace moesim::routing
