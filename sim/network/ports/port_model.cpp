#include "sim/network/ports/port_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::network {

using profile::Collective;
using profile::Estimate;

Span span_of(std::span<const int> members, const cluster::Cluster& cluster) {
  std::map<int, int> members_of_domain;
  for (const int gpu : members) ++members_of_domain[cluster.domain_of(gpu)];
  Span span;
  span.gpus = static_cast<int>(members.size());
  span.domains = static_cast<int>(members_of_domain.size());
  span.smallest_share = span.gpus;
  for (const auto& [domain, count] : members_of_domain) {
    span.largest_share = std::max(span.largest_share, count);
    span.smallest_share = std::min(span.smallest_share, count);
  }
  return span;
}

PortModel::PortModel(std::shared_ptr<const profile::Profile> profile,
                     std::shared_ptr<const cluster::Cluster> cluster)
    : profile_(std::move(profile)), cluster_(std::move(cluster)) {}

// The load of the busiest NIC, in buffers over the NIC bandwidth of one GPU.
double PortModel::busiest_nic(Collective kind, std::span<const int> members) const {
  struct Domain {
    int members = 0;
    std::map<std::pair<int, int>, int> behind;  // members by node and NIC
  };
  std::map<int, Domain> domains;
  for (const int gpu : members) {
    Domain& domain = domains[cluster_->domain_of(gpu)];
    ++domain.members;
    ++domain.behind[{cluster_->node_of(gpu), cluster_->nic_of(gpu)}];
  }
  const auto ranks = static_cast<double>(members.size());
  const auto count = static_cast<double>(domains.size());
  // NIC bandwidth behind one port of a node, in that of one GPU: more where GPUs share a NIC.
  const double width = static_cast<double>(cluster_->gpus_per_node) / cluster_->ports_per_node();
  double worst = 0;
  for (const auto& [number, domain] : domains) {
    const double others = (ranks - domain.members) / ranks;
    const double all_nics = width * static_cast<double>(domain.behind.size());
    if (kind == Collective::all_to_all) {
      for (const auto& [nic, sharing] : domain.behind) {
        worst = std::max(worst, sharing * others / width);
      }
    } else if (kind == Collective::all_reduce) {
      worst = std::max(worst, 2 * ((count - 1) / count / all_nics));
    } else {
      worst = std::max(worst, std::max(others, domain.members / ranks) / all_nics);
    }
  }
  return worst;
}

Estimate PortModel::nic_part(Collective kind, std::span<const int> members, double bytes) const {
  const Span span = span_of(members, *cluster_);
  if (!(cluster_->nic_per_gpu.bytes_per_second > 0)) {
    throw Error(fmt::format(
        "cluster '{}' has no NIC bandwidth, but an {} among {} GPUs leaves its domain: give the "
        "cluster document a nic_per_gpu, or choose fewer GPUs",
        cluster_->name, name_of(kind), span.gpus));
  }
  const double share = busiest_nic(kind, members);
  const double peers = span.domains - 1;
  const double rounds = kind == Collective::all_to_all   ? 1
                        : kind == Collective::all_reduce ? 2 * peers
                                                         : peers;
  const double latency_us = rounds * cluster_->nic_latency_us;
  const auto at_efficiency = [&](double efficiency) {
    return latency_us + share * bytes / (cluster_->nic_per_gpu.bytes_per_second * efficiency) * 1e6;
  };
  return {at_efficiency(cluster_->nic_efficiency), at_efficiency(cluster_->nic_efficiency_high),
          at_efficiency(cluster_->nic_efficiency_low), profile::Origin::assumed,
          profile::Support::interpolated};
}

Estimate PortModel::price(Collective kind, std::span<const int> members, double bytes) const {
  const Span span = span_of(members, *cluster_);
  if (span.gpus < 2) {
    throw Error(
        fmt::format("an {} of one GPU with itself is a copy, not communication", name_of(kind)));
  }
  if (span.domains == 1) return profile_->collective(kind, span.gpus, bytes);
  const Estimate across = nic_part(kind, members, bytes);
  if (span.largest_share == 1) return across;
  const double inside_bytes =
      kind == Collective::all_to_all ? bytes * span.largest_share / span.gpus : bytes;
  const Estimate inside = profile_->collective(kind, span.largest_share, inside_bytes);
  double late_us = std::max(inside.time_us_p95, across.time_us_p95);
  if (kind != Collective::all_to_all) late_us = std::max(late_us, inside.time_us + across.time_us);
  return {std::max(inside.time_us, across.time_us),
          std::max(inside.time_us_p05, across.time_us_p05), late_us,
          std::max(inside.origin, across.origin), std::max(inside.support, across.support)};
}

}  // namespace moesim::network
