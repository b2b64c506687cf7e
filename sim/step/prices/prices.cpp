#include "sim/step/prices/prices.hpp"

#include <algorithm>

#include "sim/network/exchange/exchange_model.hpp"

namespace moesim::step {
namespace {

constexpr std::int64_t tile = 16;  // rows

Calibration with_software(Calibration calibration, const profile::Profile& profile) {
  for (std::size_t kind = 0; kind < kernel_class_count; ++kind) {
    calibration.multiplier[kind] *=
        profile.software_multiplier(name_of(static_cast<KernelClass>(kind)));
  }
  return calibration;
}

}  // namespace

std::vector<int> farthest_group(const std::vector<std::vector<int>>& groups,
                                const cluster::Cluster& cluster) {
  const auto farther = [&](const std::vector<int>& first, const std::vector<int>& second) {
    const network::Span a = network::span_of(first, cluster);
    const network::Span b = network::span_of(second, cluster);
    return a.domains != b.domains ? a.domains > b.domains : a.smallest_share < b.smallest_share;
  };
  const std::vector<int>* chosen = &groups.front();
  for (const std::vector<int>& group : groups) {
    if (farther(group, *chosen)) chosen = &group;
  }
  return *chosen;
}

bool is_fixed(const StepOperation& operation) {
  switch (operation.work) {
    case Work::phase:
      return routing::traits_of(operation.phase).rows == routing::PhaseRows::tokens;
    case Work::exchange_rows:
    case Work::exchange_probabilities:
    case Work::exchange_rectified:
      return false;
    default:
      return true;
  }
}

bool goes_by_tokens(const StepOperation& operation) {
  switch (operation.work) {
    case Work::embedding:
    case Work::attention:
    case Work::dense_ffn:
    case Work::head:
      return true;
    case Work::phase:
      return is_fixed(operation);
    default:
      return false;
  }
}

double PricedWork::latency_share() const {
  double time_us = 0;
  double latency_us = 0;
  for (const PricedKernel& kernel : kernels) {
    time_us += kernel.count * kernel.estimate.time_us;
    latency_us += kernel.count * kernel.latency_us;
  }
  return time_us > 0 ? latency_us / time_us : 0;
}

Prices::Prices(const scenario::Scenario& scenario, const StepProgram& program,
               const Calibration& calibration)
    : calibration_(with_software(calibration, *scenario.profile)),
      classes_(scenario),
      errors_(scenario.seed, scenario.replicas) {
  for (TokenClass tokens = 0; tokens < classes_.count(); ++tokens) {
    pricers_.emplace_back(scenario, classes_.tokens(tokens));
  }
  for (const engine::Partition& partition : program.program().partitions) {
    members_.push_back(farthest_group(partition.groups, *scenario.cluster));
  }
  price_fixed(program);
}

// Operations that differ only in their MoE layer cost the same.
void Prices::price_fixed(const StepProgram& program) {
  std::map<StepOperation, int> known;
  for (StepOperation operation : program.operations()) {
    if (!is_fixed(operation)) {
      fixed_of_.push_back(-1);
      continue;
    }
    operation.moe_layer = -1;
    const auto [found, added] = known.try_emplace(operation, static_cast<int>(fixed_.size()));
    fixed_of_.push_back(found->second);
    if (!added) continue;
    std::vector<PricedWork>& work = fixed_.emplace_back();
    const std::size_t count = goes_by_tokens(operation) ? classes_.count() : 1;
    for (TokenClass tokens = 0; tokens < count; ++tokens) {
      work.push_back(price(operation, {}, tokens));
    }
  }
}

PricedWork Prices::price(const StepOperation& operation, const Amount& amount, TokenClass tokens) {
  PricedWork work;
  std::span<const int> members;
  if (operation.groups != Groups::none) {
    members = members_[static_cast<std::size_t>(operation.groups)];
  }
  for (const Kernel& kernel : kernels_of(operation, amount, pricers_[tokens], members)) {
    work.kernels.push_back({errors_.number_of(kernel.label), kernel.kernel_class, kernel.estimate,
                            kernel.count, kernel.latency_us});
  }
  return work;
}

PricedWork& Prices::fixed(int operation, TokenClass tokens) {
  const int place = fixed_of_[static_cast<std::size_t>(operation)];
  std::vector<PricedWork>& work = fixed_[static_cast<std::size_t>(place)];
  return work.size() == 1 ? work.front() : work[tokens];
}

PricedWork& Prices::sized(const StepOperation& operation, const Amount& amount, TokenClass tokens) {
  const SizedKey key{operation.work, operation.pass, operation.phase, amount, tokens};
  const auto found = sized_.find(key);
  if (found != sized_.end()) return found->second;
  return sized_.emplace(key, price(operation, amount, tokens)).first->second;
}

Picoseconds Prices::time(PricedWork& work, int replica) const {
  if (work.replica == replica) return work.time;
  double microseconds = 0;
  for (const PricedKernel& kernel : work.kernels) {
    microseconds += kernel.count * calibration_.of(kernel.kernel_class) *
                    with_error(kernel.estimate, errors_.of(kernel.error, replica));
  }
  work.replica = replica;
  // The difference between calls with and without appended rows may be negative where a curve is
  // not monotonic.
  return work.time = Picoseconds::from_us(std::max(0.0, microseconds));
}

Picoseconds Prices::exchange_time(const profile::Estimate& estimate, const std::string& label,
                                  int replica) {
  const double error = errors_.of(errors_.number_of(label), replica);
  return Picoseconds::from_us(calibration_.of(KernelClass::exchange) * with_error(estimate, error));
}

PricedWork Prices::exchange_work(const profile::Estimate& estimate, const std::string& label) {
  PricedWork work;
  work.kernels.push_back({errors_.number_of(label), KernelClass::exchange, estimate});
  return work;
}

const std::vector<CurvePart>& Prices::parts(PricedWork& work) const {
  if (!work.parts.empty()) return work.parts;
  for (const PricedKernel& kernel : work.kernels) {
    const double median_us =
        kernel.count * calibration_.of(kernel.kernel_class) * kernel.estimate.time_us;
    const auto found =
        std::find_if(work.parts.begin(), work.parts.end(),
                     [&](const CurvePart& part) { return part.error == kernel.error; });
    CurvePart& part = found != work.parts.end()
                          ? *found
                          : work.parts.emplace_back(CurvePart{kernel.error, 0, 0, 0});
    part.median_us += median_us;
    part.below_us += median_us * log_of_error(kernel.estimate, -1);
    part.above_us += median_us * log_of_error(kernel.estimate, 1);
  }
  return work.parts;
}

RowPrices& Prices::by_rows(const StepOperation& operation, TokenClass tokens, int replica) {
  if (by_rows_replica_ != replica) by_rows_.clear();
  by_rows_replica_ = replica;
  return by_rows_
      .try_emplace({operation.phase, operation.pass, tokens}, *this, operation, tokens, replica)
      .first->second;
}

// The time of a product is smooth except where another tile is needed, which happens just above
// multiples of 16 rows (smaller tiles are for few rows): between these it is interpolated,
// also over the steps of a curve's trees: to within 0.1 % in the median and 2 % at a step, a
// fraction of what the curve itself is off.
std::int64_t priced_rows(const StepOperation& operation, std::int64_t rows) {
  constexpr std::int64_t few = 512;
  const bool product = routing::traits_of(operation.phase).rows == routing::PhaseRows::received;
  if (!product || rows <= few) return rows;
  return (rows - 1) / tile * tile + 1;
}

Picoseconds RowPrices::look_up(std::int64_t rows) {
  const auto at = static_cast<std::size_t>(rows);
  if (times_.size() <= at) times_.resize(at + at / 2 + 1, Picoseconds(-1));
  const std::int64_t low = priced_rows(operation_, rows);
  const std::int64_t high = low + tile - 1;
  if (rows == low || rows == high) {
    return times_[at] =
               prices_.time(prices_.sized(operation_, {false, rows, 0}, tokens_), replica_);
  }
  const Picoseconds least = of(low);
  const Picoseconds most = of(high);
  const std::int64_t part = (most - least).count * (rows - low) / (tile - 1);
  return times_[at] = least + Picoseconds(part);
}

std::string Prices::provenance() const {
  std::vector<profile::Estimate> weakest(kernel_class_count);
  std::vector<bool> seen(kernel_class_count);
  const auto look_at = [&](const PricedWork& work) {
    for (const PricedKernel& kernel : work.kernels) {
      const auto kind = static_cast<std::size_t>(kernel.kernel_class);
      profile::Estimate& worst = weakest[kind];
      worst.origin =
          seen[kind] ? std::max(worst.origin, kernel.estimate.origin) : kernel.estimate.origin;
      worst.support =
          seen[kind] ? std::max(worst.support, kernel.estimate.support) : kernel.estimate.support;
      seen[kind] = true;
    }
  };
  for (const std::vector<PricedWork>& of_classes : fixed_) {
    for (const PricedWork& work : of_classes) look_at(work);
  }
  for (const auto& [key, work] : sized_) look_at(work);
  std::string text;
  for (std::size_t kind = 0; kind < kernel_class_count; ++kind) {
    if (!seen[kind]) continue;
    if (!text.empty()) text += "; ";
    text += std::string(name_of(static_cast<KernelClass>(kind))) + " " + describe(weakest[kind]);
    if (calibration_.multiplier[kind] != 1) text += ", calibrated";
  }
  return text;
}

}  // namespace moesim::step
