#include "sim/uncertainty/loaded_draws.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "sim/base/statistics.hpp"

namespace moesim::uncertainty {
namespace {

constexpr std::size_t fewest = 8;
constexpr double worth_it = 1.0 / 3;  // explained share of the variance

// A line of steps over loads.
struct Line {
  double load = 0;
  double step_ms = 0;
  double slope = 0;
  double variance = 0;  // around it, squared milliseconds
  bool explains = false;
};

Line line_of(const std::vector<double>& steps, const std::vector<double>& loads) {
  Line line{mean(loads), mean(steps)};
  double together = 0;
  double of_loads = 0;
  double of_steps = 0;
  for (std::size_t draw = 0; draw < steps.size(); ++draw) {
    const double load = loads[draw] - line.load;
    const double step = steps[draw] - line.step_ms;
    together += load * step;
    of_loads += load * load;
    of_steps += step * step;
  }
  line.explains = together > 0 && together * together >= worth_it * of_loads * of_steps;
  if (!line.explains) return line;
  line.slope = together / of_loads;
  line.variance = (of_steps - together * line.slope) / static_cast<double>(steps.size() - 2);
  return line;
}

std::size_t nearest(const std::vector<double>& loads, double load) {
  const auto found = std::min_element(loads.begin(), loads.end(), [&](double one, double other) {
    return std::abs(one - load) < std::abs(other - load);
  });
  return static_cast<std::size_t>(found - loads.begin());
}

// Of the mean step and the variance of its log the log-normal distribution's median.
WeighedDraw log_normal(double mean_ms, double variance, const WorkShares& shares) {
  return {{mean_ms * std::exp(-variance / 2), shares}, variance};
}

}  // namespace

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
  Line line;
  if (averaged.loads.size() == draws.size()) line = line_of(steps, averaged.loads);
  if (!line.explains) {
    for (std::size_t draw = 0; draw < draws.size(); ++draw) {
      weighed.push_back(log_normal(steps[draw], averaged.variance[draw], draws[draw].shares));
    }
    return weighed;
  }
  // Not below half of the shortest step, wherever the load lies.
  const double least_ms = *std::min_element(steps.begin(), steps.end()) / 2;
  for (const double load : averaged.all_loads) {
    const double step_ms = std::max(line.step_ms + line.slope * (load - line.load), least_ms);
    const std::size_t like = nearest(averaged.loads, load);
    weighed.push_back(log_normal(step_ms,
                                 averaged.variance[like] + line.variance / (step_ms * step_ms),
                                 draws[like].shares));
  }
  return weighed;
}

}  // namespace moesim::uncertainty
