#include "sim/uncertainty/ratios/link_ratio.hpp"

#include <cmath>

#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::uncertainty {

double link_deviation(const LinkedStep& one, const LinkedStep& other, bool other_domains) {
  const ClassShares first = class_shares(one.parts, one.exchanges);
  const ClassShares second = class_shares(other.parts, other.exchanges);
  double variance = square(host_deviation * (first.host - second.host));
  for (const auto& work : work_class_names) {
    const auto place = static_cast<std::size_t>(work.value);
    const double share = first.work[place];
    const double other_share = second.work[place];
    const double error = systematic_error(work.value, one.exchanges.are_measured);
    const double other_error = systematic_error(work.value, other.exchanges.are_measured);
    const bool apart =
        work.value == WorkClass::across || (work.value == WorkClass::inside && other_domains);
    variance += apart ? square(share * error) + square(other_share * other_error)
                      : square((share - other_share) * error);
  }
  return std::sqrt(variance);
}

std::vector<BandLevel> link_ratio_levels(double link_deviation) {
  std::vector<BandLevel> levels;
  for (const double level : usual_levels()) levels.push_back({level, {0, 0}});
  widen_levels(std::hypot(link_deviation, run_noise * std::sqrt(2.0)), levels);
  return levels;
}

void widen_levels(double deviation, std::vector<BandLevel>& levels) {
  for (BandLevel& each : levels) {
    const double reach = normal_quantile((1 + each.level) / 2) * deviation;
    Interval& ends = each.log_ratios;
    ends = {-std::hypot(ends.low, reach), std::hypot(ends.high, reach)};
  }
}

}  // namespace moesim::uncertainty
