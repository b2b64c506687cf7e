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
    add_law(links, links.gpus, errors_of_law(kind_, links.kind));
  }
  borders_ = borders_of_errors();
  for (Branch& branch : branches_) {
    if (!branch.own) branch.ends = rising_ends(branch);
  }
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
                {},
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
  // Latencies grow with the number of steps or peers; what bytes take, with the share that leaves a
  // GPU. Over PCIe peers take it one after another, behind other root complexes for longer.
  const double by_count = static_cast<double>(gpus - low.gpus) / (high->gpus - low.gpus);
  const bool one_after_another =
      kind_ == Collective::all_to_all && links_.kind == NodeLinks::Kind::pcie;
  const double by_share = one_after_another ? by_count : by_count * high->gpus / gpus;
  const auto of_smallest = [&](const Branch& branch) {
    return at_branch(branch, branch.errors->measured_bytes.front(), same_version);
  };
  const Estimate few_start = of_smallest(low);
  const Estimate many_start = of_smallest(*high);
  const auto mix = [&](double Estimate::*part) {
    const double few_start_us = std::min(few_start.*part, few.*part);
    const double many_start_us = std::min(many_start.*part, many.*part);
    return std::lerp(few_start_us, many_start_us, by_count) +
           std::lerp(few.*part - few_start_us, many.*part - many_start_us, by_share);
  };
  Estimate estimate;
  estimate.time_us = mix(&Estimate::time_us);
  if (high->own) {
    // Errors of a weighted mean add by their weights, at most: beside a count the band is its own,
    // and grows on the way from a measured one to one by the law.
    estimate.time_us_p05 = mix(&Estimate::time_us_p05);
    estimate.time_us_p95 = mix(&Estimate::time_us_p95);
  } else {
    // No law says how far off a count between two measured ones is: it lies between both.
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
