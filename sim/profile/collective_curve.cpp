#include "sim/profile/collective_curve.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim::profile {

namespace {

// The errors in the law's checks on A100 and H100, 8 GPUs from 2 and 4, all operations and sizes
// together (profiles/EXCHANGES.md): for a curve that carries no check of its own.
Residual::Region other_machines() { return {"all", 0, 0.05, 0.15, -0.10, 0.20}; }

Residual by_bytes(const Node& node) {
  Residual residual(node);
  if (residual.by() != "bytes") node.fail("expected \"bytes\"", "by");
  return residual;
}

// Ascending.
std::vector<double> read_sizes(const Node& node) {
  std::vector<double> sizes = node.numbers("measured_bytes");
  if (sizes.empty()) node.fail("expected at least one size", "measured_bytes");
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

std::map<double, double> read_measured_times(const Node& node) {
  std::map<double, double> measured;
  if (!node.has("measured_time_us")) return measured;
  const std::vector<double> sizes = node.numbers("measured_bytes");
  const std::vector<double> times = node.numbers("measured_time_us");
  if (times.size() != sizes.size()) {
    node.fail("expected as many times as there are sizes in measured_bytes", "measured_time_us");
  }
  for (std::size_t size = 0; size < sizes.size(); ++size) {
    if (!(times[size] > 0)) node.fail("times must be positive", "measured_time_us");
    measured[sizes[size]] = times[size];
  }
  return measured;
}

// As Node::fail() names a key.
std::string where(const Node& node, const std::string& key) {
  return fmt::format("{}: {}/{}", node.file(), node.path(), key);
}

}  // namespace

Collective read_collective(const Node& node, const std::string& key) {
  return value_in(collective_names, node.text(key), where(node, key));
}

CollectiveCurve::CollectiveCurve(const Node& node, const NodeLinks& links)
    : kind_(read_collective(node, "op")),
      links_(links),
      nccl_(node.at("params").text("nccl")),
      is_default_(node.boolean_or("default", false)),
      errors_(std::make_shared<const Errors>(read_errors(node, nccl_, read_sizes(node)))) {
  for (const Node& item : node.items("branches")) {
    branches_.push_back(read_branch(item));
    const std::size_t count = branches_.size();
    if (count > 1 && branches_[count - 2].gpus >= branches_.back().gpus) {
      item.fail("GPU counts must ascend", "gpus");
    }
  }
  if (branches_.empty()) node.fail("expected at least one GPU count", "branches");
  const int measured = branches_.back().gpus;
  if (const auto law = node.find("law")) {
    const std::int64_t up_to = law->positive_integer("up_to");
    if (up_to <= measured) {
      law->fail(fmt::format("expected more than the {} GPUs of the last branch", measured),
                "up_to");
    }
    const Residual residual(law->at("residual"));
    if (residual.by() != "bytes") law->at("residual").fail("expected \"bytes\"", "by");
    add_law(links, static_cast<int>(up_to), residual);
  } else if (links.join(measured + 1) &&
             (kind_ == Collective::all_to_all || branches_.size() > 1)) {
    add_law(links, links.gpus, Residual("bytes", other_machines()));
  }
  borders_ = borders_of_errors();
}

std::vector<double> CollectiveCurve::borders_of_errors() const {
  std::set<double> borders;
  const auto add = [&](const Residual& residual) {
    if (residual.by() != "bytes") return;
    for (const Residual::Region& region : residual.regions()) {
      if (std::isfinite(region.below)) borders.insert(region.below);
    }
  };
  for (const Branch& branch : branches_) {
    add(branch.errors->residual);
    if (branch.errors->tail) {
      add(*branch.errors->tail);
      borders.insert(std::nextafter(branch.errors->measured_bytes.back(),
                                    std::numeric_limits<double>::infinity()));
    }
    if (branch.errors->scatter) {
      add(branch.errors->scatter->any_version);
      add(branch.errors->scatter->same_version);
    }
    if (!branch.own) continue;
    add(branch.own->any_version);
    add(branch.own->same_version);
  }
  return {borders.begin(), borders.end()};
}

// What the law starts from is the curve of the most GPUs: its errors are the law's too.
void CollectiveCurve::add_law(const NodeLinks& links, int up_to, const Residual& residual) {
  std::vector<CountCurve> fewer;
  for (const Branch& branch : branches_) fewer.push_back({branch.gpus, branch.curve});
  const int measured = branches_.back().gpus;
  const std::shared_ptr<const Errors> errors = branches_.back().errors;
  for (int gpus = measured + 1; gpus <= up_to; ++gpus) {
    // The law is checked over one doubling of the GPU count.
    const double doublings = std::log2(static_cast<double>(gpus) / measured) - 1;
    branches_.push_back({gpus,
                         Origin::derived,
                         among_more_gpus(kind_, links, fewer, gpus),
                         errors,
                         OwnResidual{residual, residual, false},
                         std::max(doublings, 0.0),
                         {},
                         {}});
  }
}

CollectiveCurve::Branch CollectiveCurve::read_branch(const Node& node) const {
  const std::int64_t gpus = node.positive_integer("gpus");
  if (gpus < 2) node.fail("expected at least 2: one GPU does not communicate", "gpus");
  constexpr std::int64_t most = 1 << 20;
  if (gpus > most) node.fail(fmt::format("{} GPUs: at most {}", gpus, most), "gpus");
  Branch branch{static_cast<int>(gpus),
                read_origin(node, "origin"),
                SizeCurve(node),
                errors_of_branch(node),
                {},
                0,
                read_measured_times(node),
                {}};
  if (const auto own = node.find("residual")) {
    const auto same = node.find("residual_same_version");
    branch.own = OwnResidual{by_bytes(*own), by_bytes(same ? *same : *own), true};
  }
  if (const auto beyond = node.find("beyond")) read_beyond(*beyond, branch);
  return branch;
}

void CollectiveCurve::read_beyond(const Node& node, Branch& branch) {
  const std::vector<double> sizes = node.numbers("bytes");
  const std::vector<double> low = node.numbers("low_us");
  const std::vector<double> high = node.numbers("high_us");
  if (low.size() != sizes.size() || high.size() != sizes.size()) {
    node.fail("expected as many times as there are sizes in bytes");
  }
  for (std::size_t size = 0; size < sizes.size(); ++size) {
    const double time_us = branch.curve.time_us(sizes[size]);
    if (!(low[size] > 0 && low[size] <= time_us && high[size] >= time_us)) {
      node.fail(
          fmt::format("{} bytes: low_us and high_us must enclose {} us", sizes[size], time_us));
    }
    branch.beyond[sizes[size]] = {std::log(time_us / low[size]), std::log(high[size] / time_us)};
  }
  const std::vector<double>& measured = branch.errors->measured_bytes;
  branch.beyond[measured.front()] = branch.beyond[measured.back()] = {};
}

CollectiveCurve::Errors CollectiveCurve::read_errors(const Node& node, const std::string& nccl,
                                                     std::vector<double> measured_bytes) {
  Errors errors{nccl, by_bytes(node.at("residual")), {}, {}, {}, std::move(measured_bytes)};
  if (const auto near = node.find("residual_at_measured")) errors.at_measured = Residual(*near);
  if (const auto tail = node.find("tail")) errors.tail = by_bytes(tail->at("residual"));
  if (const auto scatter = node.find("scatter")) {
    errors.scatter =
        Scatter{by_bytes(scatter->at("any_version")), by_bytes(scatter->at("same_version"))};
  }
  return errors;
}

std::shared_ptr<const CollectiveCurve::Errors> CollectiveCurve::errors_of_branch(
    const Node& node) const {
  const auto from = node.find("from_curve");
  const bool has_sizes = node.has("measured_bytes");
  if (!from && !has_sizes) return errors_;
  std::vector<double> sizes = has_sizes ? read_sizes(node) : errors_->measured_bytes;
  if (from) {
    return std::make_shared<const Errors>(read_errors(*from, from->text("nccl"), std::move(sizes)));
  }
  Errors errors = *errors_;
  errors.measured_bytes = std::move(sizes);
  return std::make_shared<const Errors>(std::move(errors));
}

std::vector<int> CollectiveCurve::gpu_counts() const {
  std::vector<int> counts;
  for (const Branch& branch : branches_) counts.push_back(branch.gpus);
  return counts;
}

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
  if (!branch.own || !branch.own->has_scatter) {
    (same_version ? scatter->same_version : scatter->any_version).join(bytes, estimate);
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

// The ends of a law's band rise with size, as times do: errors differ from region to region of
// sizes, but a latency that is longer than the law's is so at every size.
void CollectiveCurve::rise_with_size(const Branch& branch, double bytes, bool asked_version,
                                     Estimate& estimate) const {
  std::vector<double> sizes;
  for (const double border : borders_) sizes.push_back(std::nextafter(border, 0.0));
  // What fewer GPUs take raises the low end here and there: quarters of octaves are near enough,
  // and times grow by more than ends fall over six octaves.
  constexpr double per_octave = 4;
  const double last = std::floor(per_octave * std::log2(bytes));
  for (double step = last - 6 * per_octave; step <= last; ++step) {
    const double size = std::exp2(step / per_octave);
    if (size >= branch.errors->measured_bytes.front()) sizes.push_back(size);
  }
  for (const double size : sizes) {
    if (size > bytes) continue;
    const Estimate smaller = at_size(branch, size, asked_version);
    estimate.time_us_p05 = std::max(estimate.time_us_p05, smaller.time_us_p05);
    estimate.time_us_p95 = std::max(estimate.time_us_p95, smaller.time_us_p95);
  }
}

Estimate CollectiveCurve::at_branch(const Branch& branch, double bytes, bool asked_version) const {
  Estimate estimate = at_size(branch, bytes, asked_version);
  // A message that is smaller than all measured ones takes no longer than the smallest of them.
  const double smallest = branch.errors->measured_bytes.front();
  if (bytes < smallest) {
    estimate.time_us_p95 =
        std::min(estimate.time_us_p95, at_size(branch, smallest, asked_version).time_us_p95);
  }
  if (branch.own) rise_with_size(branch, bytes, asked_version, estimate);
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

void CollectiveCurve::refuse(int gpus) const {
  const std::string known = fmt::format("{} among {} GPUs of one node: the profile knows {} GPUs",
                                        name_of(kind_), gpus, fmt::join(gpu_counts(), ", "));
  if (links_.kind == NodeLinks::Kind::pcie && gpus > branches_.back().gpus) {
    throw NotMeasured(fmt::format(
        "{}, over PCIe; how fast more groups of GPUs reach each other depends on the box and was "
        "not measured: run nccl-tests there and import its output (moesim import --help)",
        known));
  }
  throw NotMeasured(
      known +
      "; more cross nodes (--cluster NAME says how they are joined) or lie in a domain that "
      "was never measured (predict --schedule burst takes the links of its cluster document "
      "alone)");
}

Estimate CollectiveCurve::estimate(int gpus, double bytes, bool same_version) const {
  if (!(bytes > 0) || !std::isfinite(bytes)) {
    throw UsageError(fmt::format("{}: {} bytes: expected a positive size", name_of(kind_), bytes));
  }
  if (gpus < 2) {
    throw NoAnswer(
        fmt::format("{} among {} GPU(s): one rank is a copy on the device, not "
                    "communication; ask for --op memory or for at least 2 GPUs",
                    name_of(kind_), gpus));
  }
  const auto high = std::find_if(branches_.begin(), branches_.end(),
                                 [gpus](const Branch& branch) { return branch.gpus >= gpus; });
  if (high != branches_.end() && high->gpus == gpus) return at_branch(*high, bytes, same_version);
  if (high == branches_.end() || high == branches_.begin()) {
    refuse(gpus);
  }
  // Each rank sends bytes (n - 1) / n: compare the neighbours at that amount, not at equal buffers.
  const Branch& low = *(high - 1);
  const double sent = bytes * (gpus - 1) / gpus;
  const Estimate few = at_branch(low, sent * low.gpus / (low.gpus - 1), same_version);
  const Estimate many = at_branch(*high, sent * high->gpus / (high->gpus - 1), same_version);
  const double share = static_cast<double>(gpus - low.gpus) / (high->gpus - low.gpus);
  const auto mix = [share](double a, double b) { return a + (b - a) * share; };
  Estimate estimate;
  estimate.time_us = mix(few.time_us, many.time_us);
  if (low.own && high->own) {
    // Errors of a weighted mean add by their weights, at most. The distance between the neighbours
    // is none: with it the band would be wider than among more GPUs.
    estimate.time_us_p05 = mix(few.time_us_p05, many.time_us_p05);
    estimate.time_us_p95 = mix(few.time_us_p95, many.time_us_p95);
  } else {
    estimate.time_us_p05 = std::min(few.time_us_p05, many.time_us_p05);
    estimate.time_us_p95 = std::max(few.time_us_p95, many.time_us_p95);
  }
  estimate.origin = Origin::derived;
  const bool outside =
      few.support == Support::extrapolated || many.support == Support::extrapolated;
  estimate.support = outside ? Support::extrapolated : Support::interpolated;
  return estimate;
}

}  // namespace moesim::profile
