#include "sim/study/search/machine_prices.hpp"

#include <cmath>

namespace moesim::study {

BreakEven break_even(double price, double speed,
                     const std::vector<uncertainty::BandLevel>& levels) {
  BreakEven found{price * speed, {}};
  for (const uncertainty::BandLevel& each : levels) {
    found.ranges.push_back({each.level, found.price * std::exp(each.log_ratios.low),
                            found.price * std::exp(each.log_ratios.high)});
  }
  return found;
}

TokenCost token_cost(double prices, double speed,
                     const std::vector<uncertainty::BandLevel>& levels) {
  TokenCost found{prices / speed, std::nullopt};
  // Both cost the same where the measured ratio of speeds is that of the prices.
  const double as_dear = std::log(found.ratio);
  for (const uncertainty::BandLevel& each : levels) {
    if (each.log_ratios.contains(as_dear)) continue;
    found.chance = (1 + each.level) / 2;
    break;
  }
  return found;
}

}  // namespace moesim::study
