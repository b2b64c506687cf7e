#include "sim/network/ports/domain_curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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
