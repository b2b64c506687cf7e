#include "sim/profile/collective_curve.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/base/error.hpp"

namespace moesim::profile {

namespace {

// Of the law's checks on A100 and H100, 8 GPUs from 2 and 4, all operations and sizes together
// (profiles/README.md): for a curve that carries no check of its own.
Residual::Region other_machines() { return {"all", 0, 0.05, 0.15, -0.10, 0.20}; }

// As Node::fail() names a key.
std::string where(const Node& node, const std::string& key) {
  return fmt::format("{}: {}/{}", node.file(), node.path(), key);
}

}  // namespace

Origin read_origin(const Node& node, const std::string& key) {
  return value_in(origin_names, node.text(key), where(node, key));
}

Collective read_collective(const Node& node, const std::string& key) {
  return value_in(collective_names, node.text(key), where(node, key));
}

CollectiveCurve::CollectiveCurve(const Node& node, const NodeLinks& links)
    : kind_(read_collective(node, "op")),
      nccl_(node.at("params").text("nccl")),
      is_default_(node.boolean_or("default", false)),
      residual_(node.at("residual")),
      measured_bytes_(node.numbers("measured_bytes")) {
  if (const auto near = node.find("residual_at_measured")) at_measured_.emplace_back(*near);
  if (measured_bytes_.empty()) node.fail("expected at least one size", "measured_bytes");
  std::sort(measured_bytes_.begin(), measured_bytes_.end());
  if (residual_.by() != "bytes") node.at("residual").fail("expected \"bytes\"", "by");
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
}

void CollectiveCurve::add_law(const NodeLinks& links, int up_to, const Residual& residual) {
  std::vector<CountCurve> fewer;
  for (const Branch& branch : branches_) fewer.push_back({branch.gpus, branch.curve});
  const int measured = branches_.back().gpus;
  for (int gpus = measured + 1; gpus <= up_to; ++gpus) {
    // The law is checked over one doubling of the GPU count.
    const double doublings = std::log2(static_cast<double>(gpus) / measured) - 1;
    branches_.push_back({gpus,
                         Origin::derived,
                         among_more_gpus(kind_, links, fewer, gpus),
                         {residual},
                         std::max(doublings, 0.0)});
  }
}

CollectiveCurve::Branch CollectiveCurve::read_branch(const Node& node) const {
  const std::int64_t gpus = node.positive_integer("gpus");
  if (gpus < 2) node.fail("expected at least 2: one GPU does not communicate", "gpus");
  Branch branch{static_cast<int>(gpus), read_origin(node, "origin"), SizeCurve(node), {}, 0};
  if (const auto own = node.find("residual")) branch.own_residual.emplace_back(*own);
  return branch;
}

std::vector<int> CollectiveCurve::gpu_counts() const {
  std::vector<int> counts;
  for (const Branch& branch : branches_) counts.push_back(branch.gpus);
  return counts;
}

double CollectiveCurve::octaves_to_measured(double bytes) const {
  double nearest = std::numeric_limits<double>::infinity();
  for (const double size : measured_bytes_) {
    nearest = std::min(nearest, std::abs(std::log2(bytes / size)));
  }
  return nearest;
}

Estimate CollectiveCurve::at_branch(const Branch& branch, double bytes) const {
  const double away = octaves_to_measured(bytes);
  const bool outside = bytes < measured_bytes_.front() || bytes > measured_bytes_.back();
  const Residual& residual = branch.own_residual.empty() ? residual_ : branch.own_residual.front();
  const double time_us = branch.curve.time_us(bytes);
  Estimate estimate;
  residual.apply(time_us, bytes, widening((outside ? away : 0) + branch.doublings), estimate);
  if (branch.own_residual.empty() && !at_measured_.empty()) {
    // Held-out sizes were one octave from the next: at a measured size the bar is that of the fit,
    // and it grows from there with the distance.
    Estimate near;
    at_measured_.front().apply(time_us, bytes, 1, near);
    const double share = std::min(away, 1.0);
    estimate.time_us_p05 = near.time_us_p05 + (estimate.time_us_p05 - near.time_us_p05) * share;
    estimate.time_us_p95 = near.time_us_p95 + (estimate.time_us_p95 - near.time_us_p95) * share;
  }
  estimate.origin = branch.origin;
  estimate.support = Support::interpolated;
  if (away == 0 && branch.origin != Origin::derived) estimate.support = Support::measured_point;
  if (outside || branch.doublings > 0) estimate.support = Support::extrapolated;
  return estimate;
}

Estimate CollectiveCurve::estimate(int gpus, double bytes) const {
  if (!(bytes > 0) || !std::isfinite(bytes)) {
    throw UsageError(fmt::format("{}: {} bytes: expected a positive size", name_of(kind_), bytes));
  }
  if (gpus < 2) {
    throw UsageError(
        fmt::format("{} among {} GPU(s): one rank is a copy on the device, not "
                    "communication; ask for --op memory or for at least 2 GPUs",
                    name_of(kind_), gpus));
  }
  const auto high = std::find_if(branches_.begin(), branches_.end(),
                                 [gpus](const Branch& branch) { return branch.gpus >= gpus; });
  if (high != branches_.end() && high->gpus == gpus) return at_branch(*high, bytes);
  if (high == branches_.end() || high == branches_.begin()) {
    throw Error(
        fmt::format("{} among {} GPUs of one node: the profile knows {} GPUs; other counts "
                    "cross nodes or were never measured: describe them as a cluster",
                    name_of(kind_), gpus, fmt::join(gpu_counts(), ", ")));
  }
  // Each rank sends bytes (n - 1) / n: compare the neighbours at that amount, not at equal buffers.
  const Branch& low = *(high - 1);
  const double sent = bytes * (gpus - 1) / gpus;
  const Estimate few = at_branch(low, sent * low.gpus / (low.gpus - 1));
  const Estimate many = at_branch(*high, sent * high->gpus / (high->gpus - 1));
  const double share = static_cast<double>(gpus - low.gpus) / (high->gpus - low.gpus);
  const auto mix = [share](double a, double b) { return a + (b - a) * share; };
  Estimate estimate;
  estimate.time_us = mix(few.time_us, many.time_us);
  estimate.time_us_p05 = std::min(few.time_us_p05, many.time_us_p05);
  estimate.time_us_p95 = std::max(few.time_us_p95, many.time_us_p95);
  estimate.origin = Origin::derived;
  const bool outside =
      few.support == Support::extrapolated || many.support == Support::extrapolated;
  estimate.support = outside ? Support::extrapolated : Support::interpolated;
  return estimate;
}

}  // namespace moesim::profile
