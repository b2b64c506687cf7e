#include "kernels/measure/timing/samples.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure {
namespace {

// The largest r, from 1, with P(fewer than r of n samples lie below the median) <= 2.5 %; 0 if
// there is none. The interval then runs from the r-th smallest to the r-th largest sample.
std::size_t enclosing_rank(std::size_t n) {
  const double count = static_cast<double>(n);
  double below = 0;  // P(Binomial(n, 1/2) < r)
  for (std::size_t rank = 1; rank <= n / 2; ++rank) {
    const double k = static_cast<double>(rank - 1);
    below += std::exp(log_gamma(count + 1) - log_gamma(k + 1) - log_gamma(count - k + 1) -
                      count * std::log(2.0));
    if (below > 0.025) return rank - 1;
  }
  return n / 2;
}

}  // namespace

std::optional<Interval> median_interval(std::vector<double> samples) {
  const std::size_t rank = enclosing_rank(samples.size());
  if (rank == 0) return std::nullopt;
  std::sort(samples.begin(), samples.end());
  return Interval{samples[rank - 1], samples[samples.size() - rank]};
}

Summary summarise(const std::vector<double>& samples) {
  assert(!samples.empty());
  Summary summary;
  summary.n = samples.size();
  summary.median = median(samples);
  if (const auto interval = median_interval(samples)) {
    summary.ci95 = (interval->high - interval->low) / 2;
  }
  std::vector<double> away;
  away.reserve(samples.size());
  for (const double sample : samples) away.push_back(std::abs(sample - summary.median));
  summary.mad = median(away);
  for (const double distance : away) {
    if (summary.mad > 0 && distance / summary.mad > outlier_mads) ++summary.outliers;
  }
  summary.p05 = quantile(samples, 0.05);
  summary.p95 = quantile(samples, 0.95);
  summary.least = *std::min_element(samples.begin(), samples.end());
  return summary;
}

Filtered filter_by_clock(const std::vector<double>& times, const std::vector<double>& clocks_mhz,
                         const ClockFilter& filter) {
  assert(times.size() == clocks_mhz.size());
  Filtered result;
  std::vector<double> known;
  for (const double clock : clocks_mhz) {
    if (clock > 0) known.push_back(clock);
  }
  result.kept = times;
  if (known.empty()) return result;
  result.median_clock_mhz = median(known);
  std::vector<double> held;
  for (std::size_t sample = 0; sample < times.size(); ++sample) {
    const double clock = clocks_mhz[sample];
    if (clock > 0 && clock < filter.share * result.median_clock_mhz) continue;
    held.push_back(times[sample]);
  }
  const std::size_t fallen = times.size() - held.size();
  if (static_cast<double>(fallen) > filter.most_dropped * static_cast<double>(times.size())) {
    result.throttled = true;
    return result;
  }
  result.kept = std::move(held);
  result.dropped = fallen;
  return result;
}

}  // namespace moesim::kernels::measure
