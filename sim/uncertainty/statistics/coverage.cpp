#include "sim/uncertainty/statistics/coverage.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::uncertainty {

Coverage coverage_of(const std::vector<Judged>& judged, double level) {
  Coverage coverage;
  coverage.points = judged.size();
  const double each = 1.0 / static_cast<double>(judged.size());
  for (const Judged& point : judged) {
    const double beyond =
        std::max({0.0, point.band.low - point.value, point.value - point.band.high});
    if (point.band.contains(point.value)) coverage.inside += each;
    coverage.width += each * point.band.width();
    coverage.interval_score += each * (point.band.width() + 2 / (1 - level) * beyond);
  }
  return coverage;
}

Coverage constant_band(const std::vector<double>& values, double level) {
  // The score is 2 half + 2 / (1 - level) mean(max(0, |value| - half)), convex in `half`: least
  // where a share of 1 - level at most lies beyond.
  std::vector<double> reach;
  reach.reserve(values.size());
  for (const double value : values) reach.push_back(std::abs(value));
  std::sort(reach.begin(), reach.end());
  constexpr double rounding = 1e-9;
  const auto beyond =
      static_cast<std::size_t>((1 - level) * static_cast<double>(reach.size()) + rounding);
  const double half = reach[reach.size() - 1 - std::min(beyond, reach.size() - 1)];
  std::vector<Judged> judged;
  judged.reserve(values.size());
  for (const double each : values) judged.push_back({each, {-half, half}});
  return coverage_of(judged, level);
}

}  // namespace moesim::uncertainty
