#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "sim/profile/collective_curve.hpp"

// The bands of a curve's times.

namespace moesim::profile {

double CollectiveCurve::Errors::octaves_to_measured(double bytes) const {
  double nearest = std::numeric_limits<double>::infinity();
  for (const double size : measured_bytes) {
    nearest = std::min(nearest, std::abs(std::log2(bytes / size)));
  }
  return nearest;
}

bool CollectiveCurve::Errors::is_outside(double bytes) const {
  return bytes < measured_bytes.front() || beyond_measured(bytes);
}

bool CollectiveCurve::is_far(const Branch& branch) const {
  if (!branch.own) return false;
  int most = 0;
  for (const Branch& each : branches_) most = each.own ? most : std::max(most, each.gpus);
  return branch.gpus > 2 * most;
}

const Residual& CollectiveCurve::residual_of(const Branch& branch, double bytes,
                                             bool same_version) const {
  if (branch.own) return same_version ? branch.own->same_version : branch.own->any_version;
  const Errors& errors = *branch.errors;
  return errors.tail && errors.beyond_measured(bytes) ? *errors.tail : errors.residual;
}

// Held-out sizes were one octave from the next: at a measured size the bar is that of the fit, and
// it grows from there with the distance.
void CollectiveCurve::near_measured(const Branch& branch, double bytes, Estimate& estimate) const {
  const Errors& errors = *branch.errors;
  if (branch.own || !errors.at_measured) return;
  if (errors.tail && errors.beyond_measured(bytes)) return;
  Estimate near;
  errors.at_measured->apply(estimate.time_us, bytes, 1, near);
  const double share = std::min(errors.octaves_to_measured(bytes), 1.0);
  estimate.time_us_p05 = near.time_us_p05 + (estimate.time_us_p05 - near.time_us_p05) * share;
  estimate.time_us_p95 = near.time_us_p95 + (estimate.time_us_p95 - near.time_us_p95) * share;
}

// What lies between the run that was published and the asker's: another specimen, another version,
// and with that other places where protocols change. A curve measured on one's own node has no
// scatter.
void CollectiveCurve::spread(const Branch& branch, double bytes, bool same_version,
                             Estimate& estimate) const {
  const std::optional<Scatter>& scatter = branch.errors->scatter;
  if (!scatter) return;
  const Residual& runs = same_version ? scatter->same_version : scatter->any_version;
  if (!branch.own || !branch.own->has_scatter) {
    runs.join(bytes, estimate);
  } else {
    // What a sibling lends is known no better than what was measured.
    Estimate measured;
    runs.apply(estimate.time_us, bytes, 1, measured);
    estimate.time_us_p05 = std::min(estimate.time_us_p05, measured.time_us_p05);
    estimate.time_us_p95 = std::max(estimate.time_us_p95, measured.time_us_p95);
  }
  if (same_version) return;
  const double over = branch.curve.over_chord(bytes);
  estimate.time_us_p05 /= std::max(over, 1.0);
  estimate.time_us_p95 /= std::min(over, 1.0);
}

// Where times fell with size, the curve is their average: the band holds what was measured, between
// two sizes a straight line.
void CollectiveCurve::hold_measured(const Branch& branch, double bytes, Estimate& estimate) const {
  const auto above = branch.measured_us.lower_bound(bytes);
  if (above == branch.measured_us.end()) return;
  double measured = above->second;
  if (above->first > bytes) {
    if (above == branch.measured_us.begin()) return;
    const auto below = std::prev(above);
    const double share = (bytes - below->first) / (above->first - below->first);
    measured = below->second + (above->second - below->second) * share;
  }
  estimate.time_us_p05 = std::min(estimate.time_us_p05, measured);
  estimate.time_us_p95 = std::max(estimate.time_us_p95, measured);
  const bool is_apart = std::abs(estimate.time_us / measured - 1) >= apart_from_curve;
  if (is_apart && estimate.support == Support::measured_point) {
    estimate.support = Support::interpolated;
  }
}

// Outside the measured sizes the band holds both readings of the ratio there; between two knots in
// proportion to the logarithm of size.
void CollectiveCurve::reach_readings(const Branch& branch, double bytes, Estimate& estimate) const {
  if (branch.beyond.empty()) return;
  auto above = branch.beyond.lower_bound(bytes);
  if (above == branch.beyond.end()) --above;
  const auto below = above == branch.beyond.begin() ? above : std::prev(above);
  const double apart = std::log(above->first / below->first);
  const double share =
      apart == 0 ? 0 : std::clamp(std::log(bytes / below->first) / apart, 0.0, 1.0);
  const auto wider = [&](double end_us, double Readings::*part) {
    const double reading = std::lerp(below->second.*part, above->second.*part, share);
    return std::exp(std::hypot(std::log(end_us / estimate.time_us), reading));
  };
  const double least = wider(estimate.time_us_p05, &Readings::below);
  const double most = wider(estimate.time_us_p95, &Readings::above);
  estimate.time_us_p05 = estimate.time_us / least;
  estimate.time_us_p95 = estimate.time_us * most;
}

// Raises the low end of a law for more GPUs to that of the most GPUs that were measured: with as
// many bytes each they send as much as fewer do, in more messages. Not where fewer take longer, as
// 4 GPUs do that reduce without the switch, or whose larger messages take another protocol.
void CollectiveCurve::raise_low_end(const Branch& branch, double bytes, bool same_version,
                                    Estimate& estimate) const {
  const Branch* most = nullptr;
  for (const Branch& each : branches_) {
    if (!each.own && (most == nullptr || each.gpus > most->gpus)) most = &each;
  }
  if (most == nullptr || most->gpus >= branch.gpus) return;
  const Estimate fewer = at_branch(*most, bytes, same_version);
  if (fewer.time_us > estimate.time_us) return;
  estimate.time_us_p05 =
      std::max(estimate.time_us_p05, std::min(fewer.time_us_p05, estimate.time_us));
}

// Keeps both ends between those at the sizes beside this one, and around the time.
void CollectiveCurve::keep_between(const Ends& below, const Ends& above, bool asked_version,
                                   Estimate& estimate) {
  const auto clamp = [&](double end_us, const auto& least, const auto& most) {
    return std::clamp(end_us, least.at(asked_version), most.at(asked_version));
  };
  estimate.time_us_p05 =
      std::min(clamp(estimate.time_us_p05, below.low_us, above.low_us), estimate.time_us);
  estimate.time_us_p95 =
      std::max(clamp(estimate.time_us_p95, below.high_us, above.high_us), estimate.time_us);
}

// The ends of a law's band rise with size, as times do: errors differ from region to region of
// sizes, but a latency that is longer than the law's is so at every size.
void CollectiveCurve::rise_with_size(const Branch& branch, double bytes, bool asked_version,
                                     Estimate& estimate) const {
  // Below the smallest measured size the band grows with the distance, which says nothing of larger
  // ones.
  const double smallest = branch.errors->measured_bytes.front();
  std::set<double> sizes = {smallest};
  for (const double border : borders_) {
    sizes.insert(std::nextafter(border, 0.0));
    sizes.insert(border);
  }
  // What fewer GPUs take raises the low end here and there: quarters of octaves are near enough,
  // and times grow by more than ends fall over six octaves.
  constexpr int per_octave = 4;
  const double last = std::floor(per_octave * std::log2(bytes));
  for (int back = -1; back <= 6 * per_octave; ++back) {
    sizes.insert(std::exp2((last - back) / per_octave));
  }
  sizes.erase(sizes.begin(), sizes.lower_bound(smallest));
  Ends below;
  Ends above{0, {}, {}};
  for (const double size : sizes) {
    below = above;
    const Estimate at = at_size(branch, size, asked_version);
    above.bytes = size;
    above.low_us.fill(std::max(below.low_us.front(), at.time_us_p05));
    above.high_us.fill(std::max(below.high_us.front(), at.time_us_p95));
    if (size >= bytes) break;
  }
  keep_between(below.bytes > 0 ? below : above, above, asked_version, estimate);
}

// The ends of a measured count's band, which rise with size as times do, from its smallest to its
// largest measured size. Errors differ from region to region of sizes, and are larger between
// measured sizes: there a time lies between those at the sizes beside it, and so do the ends. Where
// an end still falls, the band holds both readings: the high end stays where it was, and the low
// end of smaller sizes is no higher than that of larger ones.
std::vector<CollectiveCurve::Ends> CollectiveCurve::rising_ends(const Branch& branch) const {
  const std::vector<double>& measured = branch.errors->measured_bytes;
  std::set<double> sizes(measured.begin(), measured.end());
  for (std::size_t at = 1; at < measured.size(); ++at) {
    sizes.insert(std::sqrt(measured[at - 1] * measured[at]));  // farthest from both
  }
  for (const double border : borders_) {
    sizes.insert(std::nextafter(border, 0.0));
    sizes.insert(border);
  }
  std::vector<Ends> ends;
  for (const double bytes : sizes) {
    if (bytes < measured.front() || bytes > measured.back()) continue;
    const double above = *std::lower_bound(measured.begin(), measured.end(), bytes);
    const double below = *std::prev(std::upper_bound(measured.begin(), measured.end(), bytes));
    Ends here{bytes, {}, {}};
    for (const bool asked_version : {false, true}) {
      const std::size_t version = asked_version ? 1 : 0;
      const Estimate estimate = at_size(branch, bytes, asked_version);
      here.low_us.at(version) =
          std::max(estimate.time_us_p05, at_size(branch, below, asked_version).time_us_p05);
      here.high_us.at(version) =
          std::min(estimate.time_us_p95, at_size(branch, above, asked_version).time_us_p95);
    }
    ends.push_back(here);
  }
  for (const std::size_t version : {0U, 1U}) {
    for (std::size_t at = 1; at < ends.size(); ++at) {
      double& high_us = ends[at].high_us.at(version);
      high_us = std::max(high_us, ends[at - 1].high_us.at(version));
    }
    for (std::size_t at = ends.size() - 1; at-- > 0;) {
      double& low_us = ends[at].low_us.at(version);
      low_us = std::min(low_us, ends[at + 1].low_us.at(version));
    }
  }
  return ends;
}

// Larger messages than all measured ones take no less than the largest, whatever the errors of the
// sizes between.
void CollectiveCurve::rise_beyond_measured(const Branch& branch, double bytes, bool asked_version,
                                           Estimate& estimate) const {
  const auto raise = [&](double low_us, double high_us) {
    estimate.time_us_p05 = std::max(estimate.time_us_p05, std::min(low_us, estimate.time_us));
    estimate.time_us_p95 = std::max(estimate.time_us_p95, high_us);
  };
  const Ends& last = branch.ends.back();
  raise(last.low_us.at(asked_version), last.high_us.at(asked_version));
  for (const double border : borders_) {
    const double below = std::nextafter(border, 0.0);
    if (below <= last.bytes || below >= bytes) continue;
    const Estimate smaller = at_size(branch, below, asked_version);
    raise(smaller.time_us_p05, smaller.time_us_p95);
  }
}

Estimate CollectiveCurve::at_branch(const Branch& branch, double bytes, bool asked_version) const {
  Estimate estimate = at_size(branch, bytes, asked_version);
  // A message that is smaller than all measured ones takes no longer than the smallest of them.
  const double smallest = branch.errors->measured_bytes.front();
  if (bytes < smallest) {
    const Estimate least = at_branch(branch, smallest, asked_version);
    estimate.time_us_p05 = std::min(estimate.time_us_p05, least.time_us_p05);
    estimate.time_us_p95 = least.time_us_p95;
    return estimate;
  }
  if (branch.own) {
    rise_with_size(branch, bytes, asked_version, estimate);
    return estimate;
  }
  if (bytes > branch.ends.back().bytes) {
    rise_beyond_measured(branch, bytes, asked_version, estimate);
    return estimate;
  }
  const auto above =
      std::lower_bound(branch.ends.begin(), branch.ends.end(), bytes,
                       [](const Ends& ends, double size) { return ends.bytes < size; });
  const auto below = above->bytes == bytes ? above : std::prev(above);
  keep_between(*below, *above, asked_version, estimate);
  return estimate;
}

Estimate CollectiveCurve::at_size(const Branch& branch, double bytes, bool asked_version) const {
  const Errors& errors = *branch.errors;
  const bool is_other_version = errors.nccl != nccl_;
  const bool same_version = asked_version && !is_other_version;
  const double away = errors.octaves_to_measured(bytes);
  const bool outside = errors.is_outside(bytes);
  double further = outside ? away : 0;  // octaves beyond what the errors were taken from
  if (errors.tail && errors.beyond_measured(bytes)) {
    further = std::max(std::log2(bytes / branch.curve.largest()), 0.0);
  }
  Estimate estimate;
  residual_of(branch, bytes, same_version)
      .apply(branch.curve.time_us(bytes), bytes, widening(further + branch.doublings), estimate);
  near_measured(branch, bytes, estimate);
  spread(branch, bytes, same_version, estimate);
  if (branch.origin == Origin::measured) {
    const double share = another_day * widening(further);
    estimate.time_us_p05 =
        std::min(estimate.time_us_p05, estimate.time_us * std::max(1 - share, 0.1));
    estimate.time_us_p95 = std::max(estimate.time_us_p95, estimate.time_us * (1 + share));
  }
  if (outside) reach_readings(branch, bytes, estimate);
  if (branch.own) raise_low_end(branch, bytes, asked_version, estimate);
  // Nothing was measured among so many GPUs with the version that was asked for.
  estimate.origin =
      asked_version && is_other_version ? std::max(branch.origin, Origin::derived) : branch.origin;
  estimate.support = Support::interpolated;
  if (away == 0 && estimate.origin != Origin::derived) estimate.support = Support::measured_point;
  if (outside || is_far(branch)) estimate.support = Support::extrapolated;
  hold_measured(branch, bytes, estimate);
  return estimate;
}

}  // namespace moesim::profile
