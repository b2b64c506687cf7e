#include "sim/study/sweep/unknown_weights.hpp"

#include <algorithm>
#include <cmath>

#include "sim/base/statistics.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/routing/simulation/weight_range.hpp"

namespace moesim::study {

std::optional<uncertainty::LossBand> with_unknown_weights(std::optional<uncertainty::LossBand> band,
                                                          const routing::RoutingJob& job,
                                                          int replica, double loss) {
  if (!band || loss <= 0 || routing::loss_basis(job.scores, job.router) != "drawn weights") {
    return band;
  }
  const routing::WeightRange range = routing::weight_range(job, replica, weight_spread);
  const double least = std::min({1.0, range.of_larger, range.of_smaller});
  const double most = std::max({1.0, range.of_larger, range.of_smaller});
  const double other = normal_p95 * of_recorded_logits;
  return uncertainty::widened(*band, loss, loss * std::hypot(1 - least, other),
                              loss * std::hypot(most - 1, other));
}

}  // namespace moesim::study
