#include "sim/network/ports/cluster_measurements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/cluster/measured_between.hpp"
#include "sim/profile/carried_ratio.hpp"
#include "sim/profile/collective_curve.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::network {
namespace {

using cluster::MeasuredExchange;
using cluster::MeasuredOperation;
using profile::Collective;

MeasuredOperation operation_of(Collective kind) {
  switch (kind) {
    case Collective::all_to_all:
      return MeasuredOperation::all_to_all;
    case Collective::all_reduce:
      return MeasuredOperation::all_reduce;
    case Collective::all_gather:
      return MeasuredOperation::all_gather;
    case Collective::reduce_scatter:
      break;
  }
  return MeasuredOperation::reduce_scatter;
}

// On how many nodes the members lie, 0 if not evenly.
int even_nodes(const cluster::Cluster& cluster, std::span<const int> members) {
  std::map<int, int> on_node;
  for (const int gpu : members) ++on_node[cluster.node_of(gpu)];
  for (const auto& [node, count] : on_node) {
    if (count != on_node.begin()->second) return 0;
  }
  return static_cast<int>(on_node.size());
}

}  // namespace

const MeasuredExchange* find_measured(const cluster::Cluster& cluster, Collective kind,
                                      std::span<const int> members) {
  if (cluster.exchanges.empty()) return nullptr;
  return cluster.measured(operation_of(kind), even_nodes(cluster, members),
                          static_cast<int>(members.size()));
}

std::vector<const MeasuredExchange*> measured_between_nodes(const cluster::Cluster& cluster,
                                                            Collective kind) {
  std::vector<const MeasuredExchange*> curves;
  for (const MeasuredExchange& each : cluster.exchanges) {
    if (each.operation != operation_of(kind)) continue;
    const int per_node = each.gpus / each.nodes;
    if (!crosses_domains(cluster, each.nodes)) continue;
    if (per_node <= cluster.gpus_per_node) curves.push_back(&each);
  }
  return curves;
}

InsideCurves measured_inside(const cluster::Cluster& cluster, Collective kind) {
  InsideCurves curves;
  for (const MeasuredExchange& each : cluster.exchanges) {
    if (each.operation != operation_of(kind)) continue;
    if (crosses_domains(cluster, each.nodes)) continue;
    curves[each.gpus] = &each;
  }
  return curves;
}

std::vector<int> members_of(const MeasuredExchange& measured, const cluster::Cluster& cluster) {
  std::vector<int> members;
  for (int node = 0; node < measured.nodes; ++node) {
    for (int local = 0; local < measured.gpus / measured.nodes; ++local) {
      members.push_back(node * cluster.gpus_per_node + local);
    }
  }
  return members;
}

std::string measured_basis(const cluster::Cluster& cluster, Collective kind,
                           std::span<const int> members, bool is_answer) {
  const MeasuredExchange* same = find_measured(cluster, kind, members);
  if (is_answer && same != nullptr) return same->origin;
  const bool crosses = std::any_of(members.begin(), members.end(), [&](int gpu) {
    return cluster.domain_of(gpu) != cluster.domain_of(members.front());
  });
  if (!crosses) return "";
  std::vector<int> nodes;
  for (const MeasuredExchange* curve : measured_between_nodes(cluster, kind)) {
    nodes.push_back(curve->nodes);
  }
  if (nodes.empty()) return "";
  return fmt::format("corrected by what was measured on {} nodes of cluster {}",
                     fmt::join(nodes, ", "), cluster.name);
}

profile::Estimate estimate_of(const MeasuredExchange& measured, double bytes) {
  const MeasuredExchange::Time time = measured.at(bytes);
  const double share =
      profile::another_day * profile::widening(std::log2(time.beyond) + time.octaves);
  const auto [fastest_us, slowest_us] = std::minmax(time.time_us, time.curved_us);
  profile::Estimate estimate;
  estimate.time_us = time.time_us;
  estimate.time_us_p05 = std::min(time.p05_us, fastest_us * std::max(1 - share, 0.1));
  estimate.time_us_p95 = std::max(time.p95_us, slowest_us * (1 + share));
  estimate.origin = profile::Origin::measured;
  const bool point = std::any_of(measured.bytes.begin(), measured.bytes.end(),
                                 [bytes](double size) { return size == bytes; });
  estimate.support = time.beyond > 1 ? profile::Support::extrapolated
                     : point         ? profile::Support::measured_point
                                     : profile::Support::interpolated;
  return estimate;
}

profile::Estimate estimate_of(const MeasuredExchange& measured, double bytes,
                              const UsualTime& usual) {
  const double edge = std::clamp(bytes, measured.bytes.front(), measured.bytes.back());
  const profile::Estimate known = estimate_of(measured, edge);
  if (edge == bytes) return known;
  profile::Estimate estimate = usual(bytes);
  const double edge_us = usual(edge).time_us;
  const profile::CarriedRatio carried = profile::carry_beyond(
      std::log(known.time_us / edge_us), bytes / edge, edge_us / estimate.time_us);
  const double share = std::sqrt(std::min(carried.octaves, 1.0));
  const auto end = [&](double known_us, double usual_us, double reading) {
    return std::exp(std::hypot(std::log(known_us / known.time_us),
                               share * std::log(usual_us / estimate.time_us),
                               reading - carried.log));
  };
  const double below = end(known.time_us_p05, estimate.time_us_p05, carried.low);
  const double above = end(known.time_us_p95, estimate.time_us_p95, carried.high);
  estimate.time_us *= std::exp(carried.log);
  estimate.time_us_p05 = estimate.time_us / below;
  estimate.time_us_p95 = estimate.time_us * above;
  estimate.origin = profile::Origin::derived;
  estimate.support = profile::Support::extrapolated;
  return estimate;
}

}  // namespace moesim::network
