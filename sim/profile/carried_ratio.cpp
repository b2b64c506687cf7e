#include "sim/profile/carried_ratio.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace moesim::profile {
namespace {

// The rounding of a size that is computed from another.
constexpr double rounding = 1e-9;

}  // namespace

CarriedRatio carry_beyond(double log, double beyond, double longer) {
  CarriedRatio carried{log, log, log, 0};
  if (std::abs(beyond - 1) < rounding) return carried;
  carried.octaves = std::abs(std::log2(beyond));
  const double alike = std::clamp(1 / (longer * std::max(beyond, 1.0)), 0.0, 1.0);
  const double kept = std::min(longer * std::min(beyond, 1.0), 1.0);
  const auto log_with = [&](double share) {
    return std::log1p(std::expm1(log) * (share + (1 - share) * kept));
  };
  carried.log = log_with(alike);
  std::tie(carried.low, carried.high) = std::minmax({log_with(0), log_with(1)});
  return carried;
}

}  // namespace moesim::profile
