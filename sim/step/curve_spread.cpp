#include "sim/step/curve_spread.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "sim/engine/critical_path.hpp"

namespace moesim::step {
namespace {

struct CurveTotal {
  double median_ms = 0;
  double below_ms = 0;
  double above_ms = 0;
};

// The mean of exp(slope |e|) over the half of a standard normal e, times its half of the
// probability: exp(slope^2 / 2) Phi(slope).
double half_mean(double slope) {
  return std::exp(slope * slope / 2) * std::erfc(-slope / std::numbers::sqrt2) / 2;
}

double log_slope(double change_ms, double median_ms) {
  constexpr double most = 1;  // where differences of calls nearly cancel
  return std::clamp(change_ms / median_ms, -most, most);
}

}  // namespace

CurveSpread curve_spread(StepModel& model, const engine::Execution& execution,
                         const routing::ReplicaRouting* routing, int replica) {
  std::vector<CurveTotal> parts;  // [curve]
  double step_ms = 0;             // on median curves
  for (const engine::PathStep& stretch : engine::critical_path(model.program(), execution)) {
    if (stretch.duration == Picoseconds(0)) continue;
    const double ms = stretch.duration.ms();
    const auto [curves, time_us] =
        model.curve_parts(stretch.operation, stretch.rank, routing, replica);
    if (curves == nullptr || time_us <= 0) {
      step_ms += ms;
      continue;
    }
    for (const CurvePart& curve : *curves) {
      const auto at = static_cast<std::size_t>(curve.error);
      if (parts.size() <= at) parts.resize(at + 1);
      parts[at].median_ms += ms / time_us * curve.median_us;
      parts[at].below_ms += ms / time_us * curve.below_us;
      parts[at].above_ms += ms / time_us * curve.above_us;
    }
  }
  double variance = 0;
  for (const CurveTotal& part : parts) {
    if (part.median_ms == 0) continue;
    const double below = log_slope(part.below_ms, part.median_ms);
    const double above = log_slope(part.above_ms, part.median_ms);
    const double mean = half_mean(below) + half_mean(above);
    const double squares = half_mean(2 * below) + half_mean(2 * above);
    step_ms += part.median_ms * mean;
    variance += part.median_ms * part.median_ms * std::max(0.0, squares - mean * mean);
  }
  return {step_ms, std::log1p(variance / (step_ms * step_ms))};
}

}  // namespace moesim::step
