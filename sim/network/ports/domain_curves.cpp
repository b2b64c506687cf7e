#include "sim/network/ports/domain_curves.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "sim/base/no_answer.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::network {
namespace {

// The band holds links that count as half as slow, in logs, and as much more: where bytes alone
// take the time, a factor of 1.5 to either side for each factor of two between line rates.
constexpr double rate_error = 0.585;
// What is left of the profile's band, in logs, where the cluster has measured another number of
// GPUs: these share the machine, its links and its NCCL. Ratios of neighbouring sizes that lie so
// far apart (assumed) share nothing.
constexpr double unshared = 0.5;
constexpr double sizes_apart = 0.15;
// Rates of the same links differ by as much: 450 GB/s in a datasheet are 478 of 18 links'
// signalling. From `other_links` on a rate counts in full.
constexpr double same_links = 1.07;
constexpr double other_links = 1.25;

// How many times as slow the links count as, whose line rate is lower by a factor of `slower`.
double counted(double slower) {
  const double away = std::abs(std::log(slower));
  const double same = std::log(same_links);
  const double other = std::log(other_links);
  if (away >= other) return slower;
  const double part = other * std::max(0.0, away - same) / (other - same);
  return std::exp(std::copysign(part, std::log(slower)));
}

// The rate of the links among the GPUs of a node.
Bandwidth line_rate(const profile::Device& device) {
  const bool has_nvlink = device.nvlink_bandwidth.bytes_per_second > 0;
  return has_nvlink ? device.nvlink_bandwidth : device.host_bandwidth;
}

// The curves of the next smaller and the next larger number of GPUs, of those that there are.
InsideCurves neighbours(const InsideCurves& curves, int gpus) {
  InsideCurves near;
  const auto above = curves.lower_bound(gpus);
  if (above != curves.begin()) near.insert(*std::prev(above));
  if (above != curves.end()) near.insert(*above);
  return near;
}

}  // namespace

DomainCurves::DomainCurves(const profile::Profile& profile, const cluster::Cluster& cluster)
    : profile_(profile), cluster_(cluster) {
  const double measured = line_rate(profile.device()).bytes_per_second;
  const double asked = cluster.domain.port.bytes_per_second;
  if (measured <= 0 || asked <= 0 || cluster.gpus_per_domain < 2) return;
  slower_ = counted(measured / asked);
}

profile::Estimate DomainCurves::collective(profile::Collective kind, int gpus, double bytes) const {
  if (cluster_.exchanges.empty()) return of_profile(kind, gpus, bytes);
  if (const cluster::MeasuredExchange* curve = own(kind, gpus)) {
    return of_curve(*curve, kind, bytes);
  }
  const InsideCurves curves = measured_inside(cluster_, kind);
  profile::Estimate estimate = of_profile(kind, gpus, bytes);
  if (curves.empty()) return estimate;
  if (const auto ratio = carried(kind, gpus, bytes, curves)) carry_over(*ratio, estimate);
  return estimate;
}

profile::Estimate DomainCurves::of_curve(const cluster::MeasuredExchange& curve,
                                         profile::Collective kind, double bytes) const {
  try {
    return estimate_of(curve, bytes,
                       [&](double size) { return of_profile(kind, curve.gpus, size); });
  } catch (const NotMeasured&) {
    return estimate_of(curve, bytes);  // the profile does not know so many GPUs
  }
}

// The log of measured over predicted time at a size of the curve: what the measured sizes from a
// quarter to four times of it share.
std::optional<DomainCurves::SizeRatios> DomainCurves::ratios(profile::Collective kind,
                                                             const cluster::MeasuredExchange& curve,
                                                             double buffer) const {
  std::vector<double> logs;
  try {
    for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
      const double size = factor * buffer;
      if (size < curve.bytes.front() || size > curve.bytes.back()) continue;
      logs.push_back(std::log(curve.at(size).time_us / of_profile(kind, curve.gpus, size).time_us));
    }
  } catch (const NotMeasured&) {
    return std::nullopt;  // the profile does not know so many GPUs
  }
  const auto [least, most] = std::minmax_element(logs.begin(), logs.end());
  return SizeRatios{*least > 0 ? *least : std::min(*most, 0.0), *most - *least};
}

std::optional<DomainCurves::Carried> DomainCurves::carried_from(
    const cluster::MeasuredExchange& curve, profile::Collective kind, int gpus,
    double bytes) const {
  const double others = (gpus - 1.0) / gpus;
  const double buffer = bytes * others / ((curve.gpus - 1.0) / curve.gpus);  // that sends as much
  const double edge = std::clamp(buffer, curve.bytes.front(), curve.bytes.back());
  const auto found = ratios(kind, curve, edge);
  if (!found) return std::nullopt;
  const double beyond = buffer / edge;
  if (beyond == 1) return Carried{profile::carry_beyond(found->shared, 1, 1), found->spread};
  const double longer =
      of_profile(kind, gpus, bytes / beyond).time_us / of_profile(kind, gpus, bytes).time_us;
  return Carried{profile::carry_beyond(found->shared, beyond, longer), found->spread};
}

std::optional<DomainCurves::Carried> DomainCurves::carried(profile::Collective kind, int gpus,
                                                           double bytes,
                                                           const InsideCurves& curves) const {
  const InsideCurves near = neighbours(curves, gpus);
  const auto& [least, below] = *near.begin();
  const auto& [most, above] = *near.rbegin();
  const auto fewer = carried_from(*below, kind, gpus, bytes);
  if (near.size() == 1) return fewer;
  const auto more = carried_from(*above, kind, gpus, bytes);
  if (!fewer || !more) return fewer ? fewer : more;
  const double share =
      std::log(static_cast<double>(gpus) / least) / std::log(static_cast<double>(most) / least);
  const profile::CarriedRatio& few = fewer->ratio;
  const profile::CarriedRatio& many = more->ratio;
  return Carried{{std::lerp(few.log, many.log, share), std::lerp(few.low, many.low, share),
                  std::lerp(few.high, many.high, share), std::max(few.octaves, many.octaves)},
                 std::max(fewer->spread, more->spread)};
}

void DomainCurves::carry_over(const Carried& found, profile::Estimate& estimate) {
  const profile::CarriedRatio& carried = found.ratio;
  // Beyond the measured sizes nothing says that the error is shared.
  const double part = std::lerp(
      unshared, 1.0, std::min(std::max(carried.octaves, found.spread / sizes_apart), 1.0));
  const double wide = carried.log == 0 ? 1 : profile::widening(carried.octaves);
  const double time_us = estimate.time_us * std::exp(carried.log);
  const auto moved = [&](double end_us, double reading) {
    const double known = std::log(end_us / estimate.time_us);
    const double unsure = std::max(std::abs(carried.log) / 2, std::abs(reading - carried.log));
    if (unsure == 0 && part == 1) return end_us;
    return time_us * std::exp(std::copysign(std::hypot(wide * part * known, unsure), known));
  };
  estimate.time_us_p05 = moved(estimate.time_us_p05, carried.low);
  estimate.time_us_p95 = moved(estimate.time_us_p95, carried.high);
  estimate.time_us = time_us;
  if (carried.log == 0) return;
  estimate.origin = std::max(estimate.origin, profile::Origin::derived);
  estimate.support =
      std::max(estimate.support, carried.octaves > 0 ? profile::Support::extrapolated
                                                     : profile::Support::interpolated);
}

profile::Estimate DomainCurves::of_profile(profile::Collective kind, int gpus, double bytes) const {
  profile::Estimate estimate = profile_.collective(kind, gpus, slower_ * bytes);
  if (slower_ == 1) return estimate;
  const auto [fewest, most] =
      std::minmax({std::pow(slower_, 1 - rate_error), std::pow(slower_, 1 + rate_error)});
  estimate.time_us_p05 = profile_.collective(kind, gpus, fewest * bytes).time_us_p05;
  estimate.time_us_p95 = profile_.collective(kind, gpus, most * bytes).time_us_p95;
  estimate.origin = std::max(estimate.origin, profile::Origin::derived);
  if (estimate.support == profile::Support::measured_point) {
    estimate.support = profile::Support::interpolated;
  }
  return estimate;
}

const cluster::MeasuredExchange* DomainCurves::own(profile::Collective kind, int gpus) const {
  const InsideCurves curves = measured_inside(cluster_, kind);
  const auto found = curves.find(gpus);
  return found == curves.end() ? nullptr : found->second;
}

std::string DomainCurves::measured(profile::Collective kind, int gpus,
                                   std::optional<double> bytes) const {
  if (const cluster::MeasuredExchange* curve = own(kind, gpus)) {
    return bytes ? basis_of(*curve, kind, *bytes) : curve->origin;
  }
  const InsideCurves curves = measured_inside(cluster_, kind);
  if (curves.empty()) return "";
  std::vector<int> counts;
  const auto found = bytes ? carried(kind, gpus, *bytes, curves) : std::nullopt;
  bool scales = found && found->ratio.log != 0;
  for (const auto& [count, curve] : neighbours(curves, gpus)) {
    counts.push_back(count);
    scales = scales || (!bytes && std::any_of(curve->bytes.begin(), curve->bytes.end(),
                                              [&, curve = curve](double size) {
                                                const auto at = ratios(kind, *curve, size);
                                                return at && at->shared != 0;
                                              }));
  }
  if (!scales) return "";
  return fmt::format("scaled as measured among {} GPUs of cluster {}", fmt::join(counts, ", "),
                     cluster_.name);
}

std::string DomainCurves::basis_of(const cluster::MeasuredExchange& curve, profile::Collective kind,
                                   double bytes) const {
  const bool alone = of_curve(curve, kind, bytes).origin == profile::Origin::measured;
  return alone ? curve.origin : curve.origin + "; outside its sizes the profile's curve, scaled";
}

std::string DomainCurves::basis() const {
  constexpr double giga = 1e9;
  constexpr double rounding = 1e-6;
  const double measured = line_rate(profile_.device()).bytes_per_second / giga;
  const double asked = cluster_.domain.port.bytes_per_second / giga;
  const std::string& kind = cluster_.domain.kind;
  if (slower_ == 1) {
    const bool differs = measured > 0 && asked > 0 && cluster_.gpus_per_domain >= 2 &&
                         std::abs(measured / asked - 1) > rounding;
    return differs ? fmt::format("{} at {:.4g} GB/s counted as the profile's {:.4g}", kind, asked,
                                 measured)
                   : "";
  }
  const double counts = measured / slower_;
  const bool in_part = std::abs(counts / asked - 1) > rounding;
  return fmt::format("{} at {:.4g} GB/s, measured at {:.4g}{}: its time for {:.3g} times the bytes",
                     kind, asked, measured,
                     in_part ? fmt::format(", counted as {:.4g}", counts) : "", slower_);
}

std::string measured_among(const profile::Profile& profile, const cluster::Cluster& cluster,
                           profile::Collective kind, std::span<const int> members) {
  std::string basis = measured_basis(cluster, kind, members);
  const bool crosses = std::any_of(members.begin(), members.end(), [&](int gpu) {
    return cluster.domain_of(gpu) != cluster.domain_of(members.front());
  });
  if (!basis.empty() || crosses || members.size() < 2) return basis;
  return DomainCurves(profile, cluster)
      .measured(kind, static_cast<int>(members.size()), std::nullopt);
}

}  // namespace moesim::network
