#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace moesim::kernels::measure {

struct Interval {
  double low = 0;
  double high = 0;
};

// The rank-based 95 % confidence interval of the median: the order statistics whose ranks enclose
// the median with at least 95 % by the binomial distribution, whatever the samples' own
// distribution (Le Boudec, Performance Evaluation, 2010, theorem 2.1). Nothing below 6 samples,
// where even minimum and maximum enclose it with less.
std::optional<Interval> median_interval(std::vector<double> samples);

// What a set of samples says. All in the samples' unit; `samples` must not be empty.
struct Summary {
  std::size_t n = 0;
  double median = 0;
  std::optional<double> ci95;  // half the width of the interval of the median
  double mad = 0;              // median of |x - median|
  double p05 = 0;
  double p95 = 0;
  double least = 0;
  std::size_t outliers = 0;  // counted, never deleted
};
Summary summarise(const std::vector<double>& samples);

// |x - median| / MAD above which a sample counts as an outlier: ten standard deviations of a
// normal distribution (1.4826 MAD = 1 sigma).
constexpr double outlier_mads = 14.8;

// The samples whose SM clock held: those below `share` of the median clock are dropped, at most
// `most_dropped` of all; if more fell, the GPU was throttled for good, all are kept and the point
// is marked. Samples without a clock (0) are kept.
struct ClockFilter {
  double share = 0.75;
  double most_dropped = 0.20;
};
struct Filtered {
  std::vector<double> kept;
  std::size_t dropped = 0;
  bool throttled = false;
  double median_clock_mhz = 0;  // 0: no clock known
};
// `times` and `clocks_mhz` have equal lengths.
Filtered filter_by_clock(const std::vector<double>& times, const std::vector<double>& clocks_mhz,
                         const ClockFilter& filter = {});

}  // namespace moesim::kernels::measure
