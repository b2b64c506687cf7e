#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace moesim::uncertainty {

// How sure the token loss of a scenario is, by the losses of its replicas, each of which is one
// step with a routing of its own. All in shares, 0 to 1.
struct LossBand {
  std::size_t steps = 0;  // that it is based on
  double error = 0;       // standard error of the mean over replicas
  // The loss of one further step lies between these with 90 % chance.
  double p05 = 0;
  double p95 = 0;
};

// From so many replicas on the ends are order statistics.
inline constexpr std::size_t order_statistics_from = 19;

// None with fewer than two replicas. From 19 on the ends are the order statistics at 0.05 (n + 1)
// and 0.95 (n + 1), linear between neighbours: whatever the distribution, they hold a further draw
// with 90 % chance (Wilks 1941). With fewer, which reach so far by chance alone, the arcsine of the
// root of a loss, which has no ends beyond 0 and 1, counts as normal: mean +- t s sqrt(1 + 1 / n)
// with Student's t of n - 1 degrees, the interval for one further draw.
std::optional<LossBand> loss_band(std::span<const double> losses);

// `band` of a loss that may also lie `below` and `above` its own middle, with 90 % chance between
// these, for a reason of its own: the root of squares on either side of `loss`, inside 0 to 1.
LossBand widened(LossBand band, double loss, double below, double above);

}  // namespace moesim::uncertainty
