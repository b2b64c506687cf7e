#include "sim/profile/moe_exchange_law.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim::profile {

namespace {

constexpr double exponent = 3;  // of the soft maximum of fixed part and copies

// Copies of a balanced token that leave its rank.
double leaving(int ranks, std::int64_t top_k) {
  const double met = static_cast<double>(std::min<std::int64_t>(top_k, ranks));
  return met * (ranks - 1) / ranks;
}

void check(const MoeTraffic& traffic, const NodeStep& step) {
  const std::int64_t ranks = static_cast<std::int64_t>(step.ranks_per_node) * step.nodes;
  if (step.ranks_per_node < 1 || step.nodes < 2 || traffic.experts % ranks != 0) {
    throw Error(
        fmt::format("{} experts on {} nodes of {} ranks: expected at least 2 nodes and as "
                    "many experts on every rank",
                    traffic.experts, step.nodes, step.ranks_per_node));
  }
  if (!(step.nic_bytes_per_us > 0)) throw Error("the rate of a NIC must be positive");
}

}  // namespace

double distinct_groups(const MoeTraffic& traffic, int groups) {
  const std::int64_t elsewhere = traffic.experts - traffic.experts / groups;
  double missed = 1;  // the chance that none of the k experts lies in a given group
  for (std::int64_t drawn = 0; drawn < traffic.top_k; ++drawn) {
    missed *= std::max(0.0, static_cast<double>(elsewhere - drawn)) /
              static_cast<double>(traffic.experts - drawn);
  }
  return groups * (1 - missed);
}

double deepep_normal_us(const SizeCurve& one_node, const MoeTraffic& traffic, const NodeStep& step,
                        MoeStage stage, double tokens) {
  check(traffic, step);
  const double floor = one_node.time_us(0);
  const double before = distinct_groups(traffic, step.ranks_per_node);
  const double ranks_met = distinct_groups(traffic, step.ranks_per_node * step.nodes);
  const double nodes_met = distinct_groups(traffic, step.nodes);
  const double after = stage == MoeStage::dispatch ? ranks_met + nodes_met : 2 * ranks_met;
  const double copying = (one_node.time_us(tokens) - floor) * after / before;
  const double crossing = nodes_met * (step.nodes - 1) / step.nodes;
  const double nic = tokens * traffic.token_bytes * crossing / step.nic_bytes_per_us;
  return floor + std::max(copying, nic);
}

double deepep_low_latency_us(const SizeCurve& one_node, const MoeTraffic& traffic,
                             const NodeStep& step, double tokens) {
  check(traffic, step);
  const double messages = tokens * static_cast<double>(traffic.top_k);
  const double crossing = messages * (step.nodes - 1) / step.nodes;
  const double nic = crossing * traffic.token_bytes / step.nic_bytes_per_us;
  return std::max(one_node.time_us(tokens), one_node.time_us(0) + step.nic_latency_us + nic);
}

SizeCurve among_more_ranks(const SizeCurve& at_few, int few, const SizeCurve& at_many, int many,
                           int ranks, std::int64_t top_k) {
  if (few < 2 || many <= few || ranks <= many) {
    throw Error(fmt::format("{} ranks from {} and {}: expected three ascending counts from 2",
                            ranks, few, many));
  }
  const auto cube = [](double value) { return std::pow(value, exponent); };
  const double measured_growth = cube(leaving(many, top_k)) - cube(leaving(few, top_k));
  const double growth =
      (cube(leaving(ranks, top_k)) - cube(leaving(many, top_k))) / measured_growth;
  const double few_floor = at_few.time_us(0);
  const double many_floor = at_many.time_us(0);
  const double doublings =
      std::log2(static_cast<double>(ranks) / many) / std::log2(static_cast<double>(many) / few);
  const double floor = many_floor + std::max(many_floor - few_floor, 0.0) * doublings;
  // One octave beyond the largest count: the last piece carries the bandwidth of more tokens.
  std::vector<double> tokens = {at_many.smallest()};
  while (tokens.back() < at_many.largest() * (1 - 1e-9)) tokens.push_back(2 * tokens.back());
  tokens.push_back(2 * tokens.back());
  std::vector<double> times;
  for (const double count : tokens) {
    const double before = at_many.time_us(count) - many_floor;
    const double rise = std::max(cube(before) - cube(at_few.time_us(count) - few_floor), 0.0);
    const double time = floor + std::cbrt(cube(before) + growth * rise);
    times.push_back(times.empty() ? time : std::max(time, times.back()));
  }
  return SizeCurve(tokens, times);
}

}  // namespace moesim::profile
