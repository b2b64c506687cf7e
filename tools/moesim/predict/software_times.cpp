#include "tools/moesim/predict/software_times.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/statistics.hpp"
#include "sim/profile/scaled_estimate.hpp"
#include "sim/uncertainty/bands/fitted_software.hpp"

namespace moesim::tool {

profile::Estimate with_fit_error(const profile::Profile& profile, const std::string& kernel_class,
                                 profile::Estimate estimate) {
  const auto& software = profile.software();
  if (!software || !software->fit) return estimate;
  const double exchange_share = kernel_class == "exchange" ? 1 : 0;
  const uncertainty::SoftwareError error =
      uncertainty::fitted_error(*software->fit, exchange_share, 0);
  // The errors of the curve and of the fit are independent: their logs add in squares.
  const double fitted = normal_quantile(0.95) * error.factor * error.deviation;
  const double below = std::log(estimate.time_us / estimate.time_us_p05);
  const double above = std::log(estimate.time_us_p95 / estimate.time_us);
  estimate.time_us_p05 = estimate.time_us * std::exp(-std::hypot(below, fitted));
  estimate.time_us_p95 = estimate.time_us * std::exp(std::hypot(above, fitted));
  return estimate;
}

profile::Estimate as_software_runs_it(const profile::Profile& profile,
                                      const std::string& kernel_class, profile::Estimate estimate) {
  const double factor = profile.software_multiplier(kernel_class);
  return with_fit_error(profile, kernel_class, profile::scaled(estimate, factor));
}

std::string software_provenance(const profile::Profile& profile, const std::string& kernel_class) {
  const auto& software = profile.software();
  if (!software) return "";
  if (software->multipliers.count(kernel_class) == 0) {
    return fmt::format("; not scaled: {} has no multiplier of {}", profile.name(), kernel_class);
  }
  return fmt::format("; times {:.3f} ({}) by {}", profile.software_multiplier(kernel_class),
                     kernel_class, profile.name());
}

}  // namespace moesim::tool
