#include "sim/uncertainty/bands/fitted_software.hpp"

#include <algorithm>
#include <cmath>

#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"

namespace moesim::uncertainty {

profile::SoftwareFit summary_of(const StepFit& fit, const std::vector<Unknown>& free,
                                const WorkShares& shares, const std::vector<double>& left_out) {
  const Scatter& scatter = fit.scatter(RowKind::step);
  profile::SoftwareFit summary;
  summary.rows = scatter.rows;
  summary.level_variance = fit.covariance[at(Unknown::level)][at(Unknown::level)];
  // Not fitted: exchanges are as uncertain as those of any software, which bands know.
  if (std::find(free.begin(), free.end(), Unknown::exchange) != free.end()) {
    summary.exchange_variance = fit.covariance[at(Unknown::exchange)][at(Unknown::exchange)];
    summary.covariance = fit.covariance[at(Unknown::level)][at(Unknown::exchange)];
  }
  for (const auto& work : work_class_names) {
    summary.shares[work.name] = shares[static_cast<std::size_t>(work.value)];
  }
  summary.scatter = scatter.deviation;
  summary.degrees = scatter.degrees;
  if (left_out.empty()) return summary;
  std::vector<double> errors;
  for (const double log : left_out) errors.push_back(std::abs(std::exp(-log) - 1));
  summary.median_error = median(errors);
  summary.worst_error = *std::max_element(errors.begin(), errors.end());
  return summary;
}

SoftwareError fitted_error(const profile::SoftwareFit& fit, double exchange_share, double more) {
  const double own = square(fit.scatter);
  const double variance = fit.level_variance + 2 * exchange_share * fit.covariance +
                          square(exchange_share) * fit.exchange_variance + square(more) + own;
  constexpr double level = 0.9;
  SoftwareError error;
  error.deviation = std::sqrt(variance);
  error.factor =
      student_t_reach(fit.degrees * variance / own, level) / normal_quantile((1 + level) / 2);
  error.scatter = fit.scatter;
  for (const auto& work : work_class_names) {
    const auto share = fit.shares.find(work.name);
    if (share != fit.shares.end()) {
      error.fitted_shares[static_cast<std::size_t>(work.value)] = share->second;
    }
  }
  return error;
}

}  // namespace moesim::uncertainty
