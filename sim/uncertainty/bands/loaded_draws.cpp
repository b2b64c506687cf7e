#include "sim/uncertainty/bands/loaded_draws.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "sim/base/statistics.hpp"

namespace moesim::uncertainty {
namespace {

constexpr std::size_t fewest = 8;
constexpr double worth_it = 1.0 / 3;  // explained share of the variance

std::size_t nearest(const std::vector<double>& loads, double load) {
  const auto found = std::min_element(loads.begin(), loads.end(), [&](double one, double other) {
    return std::abs(one - load) < std::abs(other - load);
  });
  return static_cast<std::size_t>(found - loads.begin());
}

// The median of the log-normal distribution with this mean step and this variance of its log.
WeighedDraw log_normal(double mean_ms, double variance, const WorkShares& shares) {
  return {{mean_ms * std::exp(-variance / 2), shares}, variance};
}

}  // namespace

ValuesAtLoads values_at_loads(const std::vector<double>& values, const AveragedDraws& averaged) {
  const std::vector<double>& loads = averaged.loads;
  if (values.size() < fewest || loads.size() != values.size()) return {};
  const double middle_load = mean(loads);
  const double middle = mean(values);
  double together = 0;
  double of_loads = 0;
  double of_values = 0;
  for (std::size_t draw = 0; draw < values.size(); ++draw) {
    const double load = loads[draw] - middle_load;
    const double value = values[draw] - middle;
    together += load * value;
    of_loads += load * load;
    of_values += value * value;
  }
  const double explained = together * together;
  if (explained == 0 || explained < worth_it * of_loads * of_values) return {};
  const double slope = together / of_loads;
  ValuesAtLoads found;
  for (const double load : averaged.all_loads) {
    found.values.push_back(middle + slope * (load - middle_load));
    found.like.push_back(nearest(loads, load));
  }
  found.variance = (of_values - together * slope) / static_cast<double>(values.size() - 2);
  return found;
}

bool knows_spread(const std::vector<StepDraw>& draws, const AveragedDraws& averaged) {
  return draws.size() >= fewest && averaged.mean_ms.size() == draws.size();
}

std::vector<WeighedDraw> weighed_draws(const std::vector<StepDraw>& draws,
                                       const AveragedDraws& averaged) {
  std::vector<WeighedDraw> weighed;
  if (!knows_spread(draws, averaged)) {
    for (const StepDraw& draw : draws) weighed.push_back({draw, 0});
    return weighed;
  }
  const std::vector<double>& steps = averaged.mean_ms;
  const ValuesAtLoads all = values_at_loads(steps, averaged);
  if (all.values.empty()) {
    for (std::size_t draw = 0; draw < draws.size(); ++draw) {
      weighed.push_back(log_normal(steps[draw], averaged.variance[draw], draws[draw].shares));
    }
    return weighed;
  }
  // Not below half of the shortest step, wherever the load lies.
  const double least_ms = *std::min_element(steps.begin(), steps.end()) / 2;
  for (std::size_t at = 0; at < all.values.size(); ++at) {
    const double step_ms = std::max(all.values[at], least_ms);
    const std::size_t like = all.like[at];
    weighed.push_back(log_normal(
        step_ms, averaged.variance[like] + all.variance / (step_ms * step_ms), draws[like].shares));
  }
  return weighed;
}

}  // namespace moesim::uncertainty
