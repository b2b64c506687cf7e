#include "sim/scenario/conditions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sim/base/decimal.hpp"
#include "sim/base/error.hpp"
#include "sim/base/random.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"

namespace moesim::scenario {
namespace {

Picoseconds scaled(Picoseconds time, double factor) {
  return Picoseconds::rounded(static_cast<double>(time.count) * factor);
}

std::vector<double> by_gpu(const GpuFactors& factors, int gpus) {
  std::vector<double> all(static_cast<std::size_t>(gpus), 1.0);
  for (const GpuFactor& slow : factors) all[static_cast<std::size_t>(slow.gpu)] = slow.factor;
  return all;
}

// A standard normal from one block, Box-Muller.
double normal(const PhiloxBlock& block) {
  constexpr double unit = 1.0 / 4294967296.0;  // 2^-32
  const double radius = std::sqrt(-2 * std::log((block[0] + 0.5) * unit));
  return radius * std::cos(2 * std::numbers::pi * (block[1] + 0.5) * unit);
}

void disturb_compute(const Conditions& conditions, int operation, std::uint64_t seed, int replica,
                     const std::vector<double>& slow, engine::Durations& durations) {
  std::vector<Picoseconds>& each = durations.per_rank[static_cast<std::size_t>(operation)];
  if (each.empty()) {
    each.assign(slow.size(), durations.uniform[static_cast<std::size_t>(operation)]);
  }
  for (std::size_t rank = 0; rank < each.size(); ++rank) {
    double factor = slow[rank];
    if (conditions.jitter > 0) {
      const StreamKey key{seed, Purpose::jitter, static_cast<std::uint32_t>(replica), 0,
                          static_cast<std::uint32_t>(rank)};
      const PhiloxBlock block = philox_block(key, static_cast<std::uint64_t>(operation));
      factor *= std::exp(conditions.jitter * normal(block));
    }
    each[rank] = scaled(each[rank], factor);
  }
}

void disturb_exchange(const engine::Partition& partition, std::size_t operation,
                      const std::vector<double>& slow, const std::vector<double>& latency,
                      engine::Durations& durations) {
  std::vector<Picoseconds> each(slow.size());
  bool changed = false;
  for (std::size_t index = 0; index < partition.groups.size(); ++index) {
    const std::vector<int>& group = partition.groups[index];
    double factor = 1;
    for (const int rank : group) factor = std::max(factor, slow[static_cast<std::size_t>(rank)]);
    const Picoseconds alone = durations.of(static_cast<int>(operation), group.front());
    const double waits = latency.empty() ? 0 : latency[latency.size() == 1 ? 0 : index];
    const Picoseconds slowed = scaled(alone, waits + (1 - waits) * factor);
    for (const int rank : group) each[static_cast<std::size_t>(rank)] = slowed;
    changed = changed || factor != 1;
  }
  if (changed) durations.per_rank[operation] = std::move(each);
}

// "A:B" at its colon; both parts as they are.
std::pair<std::string, std::string> halves(const std::string& text, const std::string& flag,
                                           const char* example) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    throw UsageError(fmt::format("{}: '{}' is not of the form {}", flag, text, example));
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

double parse_slowdown(const std::string& text, const std::string& flag) {
  const double factor = Decimal::parse(text, flag).to_double();
  if (factor >= 1 && factor <= engine::Slowdowns::most) return factor;
  throw UsageError(fmt::format("{}: a factor of {}: give one from 1 (as fast as ever) to {:g}",
                               flag, text, engine::Slowdowns::most));
}

}  // namespace

std::string text_of(const GpuFactors& factors) {
  if (factors.empty()) return "none";
  std::string text;
  for (const GpuFactor& slow : factors) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : "+", slow.gpu, slow.factor);
  }
  return text;
}

std::string text_of(const engine::Slowdowns& slowdowns) {
  return fmt::format("{}:{}", slowdowns.compute, slowdowns.exchange);
}

GpuFactors parse_gpu_factors(const std::string& text, const std::string& flag) {
  GpuFactors factors;
  if (text == "none") return factors;
  for (const std::string_view part : split(text, '+')) {
    const auto [gpu, factor] =
        halves(std::string(part), flag, "GPU:FACTOR, such as 3:1.5 or 3:1.5+7:2");
    factors.push_back({static_cast<int>(parse_whole(flag, gpu, 0, cluster::most_gpus - 1)),
                       parse_slowdown(factor, flag)});
    for (std::size_t other = 0; other + 1 < factors.size(); ++other) {
      if (factors[other].gpu != factors.back().gpu) continue;
      throw UsageError(fmt::format("{}: GPU {} is named twice", flag, gpu));
    }
  }
  return factors;
}

engine::Slowdowns parse_slowdowns(const std::string& text, const std::string& flag) {
  const auto [compute, exchange] = halves(text, flag, "COMPUTE:EXCHANGE, such as 1.1:1.3");
  return {parse_slowdown(compute, flag), parse_slowdown(exchange, flag)};
}

void disturb(const Conditions& conditions, const engine::Program& program, std::uint64_t seed,
             int replica, engine::Durations& durations,
             std::span<const std::vector<double>> latency) {
  const bool compute = !conditions.slow_gpus.empty() || conditions.jitter > 0;
  const bool links = !conditions.slow_links.empty();
  const std::vector<double> slow_gpus = by_gpu(conditions.slow_gpus, program.ranks);
  const std::vector<double> slow_links = by_gpu(conditions.slow_links, program.ranks);
  for (std::size_t op = 0; op < program.operations.size(); ++op) {
    const int groups = program.operations[op].groups;
    if (groups < 0 && compute) {
      disturb_compute(conditions, static_cast<int>(op), seed, replica, slow_gpus, durations);
    } else if (groups >= 0 && links) {
      disturb_exchange(program.partitions[static_cast<std::size_t>(groups)], op, slow_links,
                       latency.empty() ? std::vector<double>() : latency[op], durations);
    }
  }
}

}  // namespace moesim::scenario
