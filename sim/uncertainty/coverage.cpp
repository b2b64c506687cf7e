#include "sim/uncertainty/coverage.hpp"

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
  Coverage best;
  bool found = false;
  // The score is piecewise linear in the half width: its least value lies at one of the values.
  for (const double value : values) {
    const double half = std::abs(value);
    std::vector<Judged> judged;
    for (const double each : values) judged.push_back({each, {-half, half}});
    const Coverage coverage = coverage_of(judged, level);
    if (!found || coverage.interval_score < best.interval_score) best = coverage;
    found = true;
  }
  return best;
}

}  // namespace moesim::uncertainty
