#pragma once

#include <vector>

namespace moesim {

// Quantile by linear interpolation between order statistics (Hyndman-Fan type 7, numpy's default).
// `values` must not be empty; `share` in 0..1.
double quantile(std::vector<double> values, double share);
double median(std::vector<double> values);
double mean(const std::vector<double>& values);
// The standard normal quantile of `share` in (0, 1).
double normal_quantile(double share);
// normal_quantile(0.95): how many standard deviations p05 and p95 lie from the middle.
inline constexpr double normal_p95 = 1.645;
// ln Gamma(x) for x > 0. std::lgamma writes a global, which threads would race for.
double log_gamma(double x);

}  // namespace moesim
