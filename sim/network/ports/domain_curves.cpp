#include "sim/network/ports/domain_curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim::network {
namespace {

// What the band widens by, to either side, for each factor of two between line rates.
constexpr double scaled_error = 1.5;
// Rates of the same links differ by as much: 450 GB/s in a datasheet are 478 of 18 links'
// signalling.
constexpr double same_links = 1.15;

// Of the links among the GPUs of a node.
Bandwidth line_rate(const profile::Device& device) {
  const bool has_nvlink = device.nvlink_bandwidth.bytes_per_second > 0;
  return has_nvlink ? device.nvlink_bandwidth : device.host_bandwidth;
}

}  // namespace

DomainCurves::DomainCurves(const profile::Profile& profile, const cluster::Cluster& cluster)
    : profile_(profile), cluster_(cluster) {
  const double measured = line_rate(profile.device()).bytes_per_second;
  const double asked = cluster.domain.port.bytes_per_second;
  if (measured <= 0 || asked <= 0 || cluster.gpus_per_domain < 2) return;
  const double slower = measured / asked;
  if (std::max(slower, 1 / slower) > same_links) slower_ = slower;
}

profile::Estimate DomainCurves::collective(profile::Collective kind, int gpus, double bytes) const {
  if (cluster_.exchanges.empty()) return of_profile(kind, gpus, bytes);
  const InsideCurves curves = measured_inside(cluster_, kind);
  if (const auto own = curves.find(gpus); own != curves.end()) {
    return estimate_of(*own->second, bytes);
  }
  profile::Estimate estimate = of_profile(kind, gpus, bytes);
  if (!curves.empty()) carry_over(kind, gpus, bytes, curves, estimate);
  return estimate;
}

// Of measured over predicted time, where as many bytes are sent as by `gpus` with `bytes`: what the
// measured sizes from a quarter to four times of it share.
double DomainCurves::log_ratio(profile::Collective kind, int gpus, double bytes,
                               const cluster::MeasuredExchange& curve) const {
  const double others = (gpus - 1.0) / gpus;
  const double buffer = std::clamp(bytes * others / ((curve.gpus - 1.0) / curve.gpus),
                                   curve.bytes.front(), curve.bytes.back());
  std::vector<double> logs;
  try {
    for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
      const double size = factor * buffer;
      if (size < curve.bytes.front() || size > curve.bytes.back()) continue;
      logs.push_back(std::log(curve.at(size).time_us / of_profile(kind, curve.gpus, size).time_us));
    }
  } catch (const Error&) {
    return 0;  // the profile does not know so many GPUs
  }
  const auto [least, most] = std::minmax_element(logs.begin(), logs.end());
  return *least > 0 ? *least : std::min(*most, 0.0);
}

void DomainCurves::carry_over(profile::Collective kind, int gpus, double bytes,
                              const InsideCurves& curves, profile::Estimate& estimate) const {
  const auto above = curves.lower_bound(gpus);
  const auto ratio = [&](InsideCurves::const_iterator curve) {
    return log_ratio(kind, gpus, bytes, *curve->second);
  };
  double log = 0;
  if (above == curves.begin() || above == curves.end()) {
    log = ratio(above == curves.end() ? std::prev(above) : above);
  } else {
    const auto below = std::prev(above);
    const double share = std::log(static_cast<double>(gpus) / below->first) /
                         std::log(static_cast<double>(above->first) / below->first);
    log = ratio(below) + share * (ratio(above) - ratio(below));
  }
  const auto wider = [&](double end_us) {
    return std::exp(std::hypot(std::log(end_us / estimate.time_us), log / 2));
  };
  const double low = wider(estimate.time_us_p05), high = wider(estimate.time_us_p95);
  estimate.time_us *= std::exp(log);
  estimate.time_us_p05 = estimate.time_us / low;
  estimate.time_us_p95 = estimate.time_us * high;
  estimate.origin = std::max(estimate.origin, profile::Origin::derived);
  estimate.support = std::max(estimate.support, profile::Support::interpolated);
}

profile::Estimate DomainCurves::of_profile(profile::Collective kind, int gpus, double bytes) const {
  profile::Estimate estimate = profile_.collective(kind, gpus, slower_ * bytes);
  if (slower_ == 1) return estimate;
  const double wider = std::pow(scaled_error, std::abs(std::log2(slower_)));
  estimate.time_us_p05 /= wider;
  estimate.time_us_p95 *= wider;
  estimate.origin = std::max(estimate.origin, profile::Origin::derived);
  if (estimate.support == profile::Support::measured_point) {
    estimate.support = profile::Support::interpolated;
  }
  return estimate;
}

std::string DomainCurves::basis() const {
  if (slower_ == 1) return "";
  constexpr double giga = 1e9;
  return fmt::format("{} at {:.4g} GB/s, measured at {:.4g}: its time for {:.3g} times the bytes",
                     cluster_.domain.kind, cluster_.domain.port.bytes_per_second / giga,
                     line_rate(profile_.device()).bytes_per_second / giga, slower_);
}

}  // namespace moesim::network
