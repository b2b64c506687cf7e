#include "sim/uncertainty/statistics/conformal.hpp"

#include <algorithm>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::uncertainty {
namespace {

constexpr double rounding = 1e-9;  // of sums of weights

// The least value that at least `level` of the weight lies at or below, where one group more, with
// the same weight, lies above everything.
double upper_quantile(std::vector<std::pair<double, double>> weighted, std::size_t groups,
                      double level) {
  std::sort(weighted.begin(), weighted.end());
  const double wanted = level * static_cast<double>(groups + 1) - rounding;
  double reached = 0;
  for (const auto& [value, weight] : weighted) {
    reached += weight;
    if (reached >= wanted) return value;
  }
  throw Error("a band wider than its groups can show was asked for");
}

}  // namespace

bool level_allowed(std::size_t groups, double level) {
  const auto count = static_cast<double>(groups);
  return level <= count / (count + 1) + rounding;
}

Interval jackknife_plus(const std::vector<HeldOut>& groups, double level) {
  std::vector<std::pair<double, double>> above;  // value, weight
  std::vector<std::pair<double, double>> below;  // mirrored
  for (const HeldOut& group : groups) {
    const double weight = 1.0 / static_cast<double>(group.scores.size());
    for (const double score : group.scores) {
      above.emplace_back(group.centre + score, weight);
      below.emplace_back(score - group.centre, weight);
    }
  }
  const Interval band{-upper_quantile(std::move(below), groups.size(), level),
                      upper_quantile(std::move(above), groups.size(), level)};
  if (band.low <= band.high) return band;
  const double between = (band.low + band.high) / 2;
  return {between, between};
}

}  // namespace moesim::uncertainty
