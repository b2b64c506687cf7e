#include "sim/network/ports/port_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/network/ports/cluster_measurements.hpp"
#include "sim/network/ports/crossing_band.hpp"
#include "sim/network/ports/domain_curves.hpp"
#include "sim/network/ports/node_crossing.hpp"
#include "sim/profile/residual.hpp"

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

double bytes_inside(Collective kind, const Span& span, double bytes) {
  return kind == Collective::all_to_all ? bytes * span.largest_share / span.gpus : bytes;
}

PortModel::PortModel(std::shared_ptr<const profile::Profile> profile,
                     std::shared_ptr<const cluster::Cluster> cluster)
    : profile_(std::move(profile)), cluster_(std::move(cluster)) {}

namespace {

const char* article(Collective kind) { return kind == Collective::reduce_scatter ? "a" : "an"; }

// What an exchange among one GPU per domain has instead of a part inside: its kernel's start.
constexpr double kernel_us = 8.4;

// The bytes of the busiest NIC for each byte of the buffer, in its one GPU's share of the NICs.
struct NicLoads {
  double bytes = 0;       // all-to-all, rings
  double tree_bytes = 0;  // all-reduce as trees
};

// The GPUs behind a port of a node that send, the members among them.
int senders_behind(const cluster::Cluster& cluster, const std::pair<int, int>& node_and_nic,
                   int members, Senders senders) {
  int sending = 0;
  for (int local = 0; local < cluster.gpus_per_node; ++local) {
    const int gpu = node_and_nic.first * cluster.gpus_per_node + local;
    if (cluster.nic_of(gpu) != node_and_nic.second) continue;
    if (gpu % cluster.gpus_per_domain < senders.per_domain) ++sending;
  }
  return std::max(members, sending);
}

NicLoads busiest_nic(Collective kind, std::span<const int> members, const cluster::Cluster& cluster,
                     Senders senders) {
  struct Domain {
    int members = 0;
    std::map<std::pair<int, int>, int> behind;  // members by node and NIC
  };
  std::map<int, Domain> domains;
  for (const int gpu : members) {
    Domain& domain = domains[cluster.domain_of(gpu)];
    ++domain.members;
    ++domain.behind[{cluster.node_of(gpu), cluster.nic_of(gpu)}];
  }
  const auto ranks = static_cast<double>(members.size());
  // NIC bandwidth behind one port of a node, in that of one GPU: more where GPUs share a NIC.
  const double width = static_cast<double>(cluster.gpus_per_node) / cluster.ports_per_node();
  NicLoads worst;
  for (const auto& [number, domain] : domains) {
    double all_nics = 0;
    for (const auto& [nic, sharing] : domain.behind) {
      // The members' share of the port.
      const double own = width * sharing / senders_behind(cluster, nic, sharing, senders);
      all_nics += own;
      if (kind != Collective::all_to_all) continue;
      worst.bytes = std::max(worst.bytes, sharing * (ranks - domain.members) / ranks / own);
    }
    if (kind == Collective::all_to_all) continue;
    const double turns = kind == Collective::all_reduce ? 2 : 1;
    worst.bytes = std::max(worst.bytes, turns * ((ranks - 1) / ranks / all_nics));
    worst.tree_bytes =
        std::max(worst.tree_bytes, tree_turns(static_cast<int>(domains.size())) / all_nics);
  }
  return worst;
}

}  // namespace

PortModel::Inside PortModel::inside(Collective kind, const Span& span, double bytes) const {
  if (span.largest_share == 1) {
    return {
        {kernel_us, kernel_us, kernel_us, profile::Origin::assumed, profile::Support::interpolated},
        kernel_us};
  }
  const int members = span.largest_share;
  const double part = bytes_inside(kind, span, bytes);
  Inside inside;
  const DomainCurves curves(*profile_, *cluster_);
  inside.time = curves.collective(kind, members, part);
  inside.smallest_us = std::min(curves.collective(kind, members, 1).time_us, inside.time.time_us);
  inside.pcie = profile_->links().kind == profile::NodeLinks::Kind::pcie;
  return inside;
}

PortModel::Crossed PortModel::by_law(Collective kind, std::span<const int> members, double bytes,
                                     std::optional<int> peers, Senders senders, Links links) const {
  const Span span = span_of(members, *cluster_);
  if (!(cluster_->nic_per_gpu.bytes_per_second > 0)) {
    throw NotMeasured(fmt::format(
        "cluster '{}' has no NIC bandwidth, but {} {} among {} GPUs leaves its domain: give the "
        "cluster document a nic, or choose fewer GPUs",
        cluster_->name, article(kind), name_of(kind), span.gpus));
  }
  const NicLoads loads = busiest_nic(kind, members, *cluster_, senders);
  NicFigures nics = figures_of(*cluster_);
  if (links == Links::unmeasured) nics = as_unmeasured(nics);
  const Law law{.load = {.kind = kind,
                         .ranks = span.gpus,
                         .domains = span.domains,
                         .per_domain = span.largest_share,
                         .peers = peers.value_or(span.gpus - span.smallest_share),
                         .nic_bytes = loads.bytes * bytes,
                         .tree_nic_bytes = loads.tree_bytes * bytes,
                         .buffer_bytes = bytes},
                .part = inside(kind, span, bytes),
                .costs = {.latency_us = cluster_->nic_latency_us,
                          .start = nics.start.value,
                          .switch_reduces = profile_->links().switch_reduces},
                .nic_rate = cluster_->nic_per_gpu.bytes_per_second / 1e6};
  Crossed crossed = law.with_band(nics);
  crossed.estimate.origin = profile::Origin::assumed;
  // Nobody measured this exchange, whatever was measured of its part inside.
  crossed.estimate.support = std::max(law.part.time.support, profile::Support::interpolated);
  return crossed;
}

namespace {

// Factors of two in nodes or GPUs, whichever are more, between two groups.
double octaves_apart(std::span<const int> some, std::span<const int> others,
                     const cluster::Cluster& cluster) {
  const auto nodes_of = [&](std::span<const int> members) {
    std::set<int> nodes;
    for (const int gpu : members) nodes.insert(cluster.node_of(gpu));
    return static_cast<double>(nodes.size());
  };
  const double gpus = static_cast<double>(some.size()) / static_cast<double>(others.size());
  return std::max(std::abs(std::log2(nodes_of(some) / nodes_of(others))),
                  std::abs(std::log2(gpus)));
}

// The log of the upper end of a band over the lower one.
double log_width(const Estimate& estimate) {
  return std::log(estimate.time_us_p95 / estimate.time_us_p05);
}

// The log of how far apart runs of one exchange were.
double log_scatter(const cluster::MeasuredExchange::Time& time) {
  return std::log(time.p95_us / time.p05_us);
}

// Each end as much nearer that the band is no wider than that: a measurement, however far away,
// says no less than none at all.
void cap(double widest, Estimate& estimate) {
  const double width = log_width(estimate);
  if (width <= widest) return;
  const double share = widest / width;
  const auto nearer = [&](double end_us) {
    return estimate.time_us * std::pow(end_us / estimate.time_us, share);
  };
  estimate.time_us_p05 = nearer(estimate.time_us_p05);
  estimate.time_us_p95 = nearer(estimate.time_us_p95);
}

// The measured number of nodes that lies nearest.
struct Nearest {
  double octaves = std::numeric_limits<double>::infinity();
  double beyond = 0;   // octaves in size from what was measured there
  double scatter = 0;  // log_scatter() of its runs
  Estimate own;        // its answer at this size

  // The law's band, cut to what curves of a machine's other numbers of nodes leave, grows with the
  // distance; no number of nodes is better known than the nearest that was measured.
  void widen(Estimate& estimate) const {
    constexpr double range = 0.2;
    constexpr double most_below = 0.9;
    const double distance = profile::widening(octaves + beyond);
    const double below =
        std::max(std::min(1 - estimate.time_us_p05 / estimate.time_us, range) * distance,
                 1 - own.time_us_p05 / own.time_us);
    const double above =
        std::max(std::min(estimate.time_us_p95 / estimate.time_us - 1, range) * distance,
                 own.time_us_p95 / own.time_us - 1);
    estimate.time_us_p05 = estimate.time_us * (1 - std::min(below, most_below));
    estimate.time_us_p95 = estimate.time_us * (1 + above);
  }
};

}  // namespace

// Corrects an estimate by the curves of other numbers of nodes.
void PortModel::correct(Collective kind, std::span<const int> members, double bytes,
                        Senders senders, Crossed& crossed) const {
  const auto curves = measured_between_nodes(*cluster_, kind);
  if (curves.empty()) return;
  constexpr double weight = 0.5;
  const double here = busiest_nic(kind, members, *cluster_, senders).bytes;
  double sum = 0;
  const auto ranks = static_cast<int>(members.size());
  bool any_fewer = false, any_more = false, any_size = false;
  Nearest nearest;
  for (const cluster::MeasuredExchange* curve : curves) {
    const std::vector<int> those = members_of(*curve, *cluster_);
    const double there = busiest_nic(kind, those, *cluster_, Senders::members).bytes;
    const double buffer = bytes * here / there;
    const auto law = [&](double size) {
      return by_law(kind, those, size, std::nullopt, Senders::members, Links::of_cluster).estimate;
    };
    const Estimate own = estimate_of(*curve, buffer, law);
    const cluster::MeasuredExchange::Time time = curve->at(buffer);
    sum += std::log(own.time_us / law(buffer).time_us);
    any_fewer |= curve->gpus <= ranks;
    any_more |= curve->gpus >= ranks;
    any_size |= time.beyond == 1;
    const double octaves = octaves_apart(members, those, *cluster_);
    if (octaves > nearest.octaves) continue;
    nearest = {octaves, std::log2(time.beyond), log_scatter(time), own};
  }
  const double factor = std::exp(weight * sum / static_cast<double>(curves.size()));
  Estimate& estimate = crossed.estimate;
  estimate.time_us *= factor;
  estimate.time_us_p05 *= factor;
  estimate.time_us_p95 *= factor;
  nearest.widen(estimate);
  // An all-reduce alone has fewer bytes where switches add up.
  if (kind != Collective::all_reduce) {
    const double line_us = here * bytes / (cluster_->nic_per_gpu.bytes_per_second / 1e6);
    estimate.time_us_p05 = std::max(estimate.time_us_p05, std::min(line_us, estimate.time_us));
  }
  const Estimate alone =
      by_law(kind, members, bytes, std::nullopt, senders, Links::unmeasured).estimate;
  cap(std::max(log_width(alone), nearest.scatter), estimate);
  estimate.origin = profile::Origin::derived;
  if (!(any_fewer && any_more && any_size)) estimate.support = profile::Support::extrapolated;
  crossed.measured = measured_basis(*cluster_, kind, members, false);
}

const cluster::MeasuredExchange* PortModel::measured(Collective kind, std::span<const int> members,
                                                     Senders senders) const {
  const cluster::MeasuredExchange* curve = find_measured(*cluster_, kind, members);
  if (curve == nullptr || senders.per_domain == 0) return curve;
  if (span_of(members, *cluster_).domains == 1) return curve;
  const double alone = busiest_nic(kind, members, *cluster_, Senders::members).bytes;
  const double shared = busiest_nic(kind, members, *cluster_, senders).bytes;
  constexpr double rounding = 1e-9;
  return shared > alone * (1 + rounding) ? nullptr : curve;
}

PortModel::Crossed PortModel::across(Collective kind, std::span<const int> members, double bytes,
                                     std::optional<int> peers, Senders senders) const {
  Crossed crossed = by_law(kind, members, bytes, peers, senders, Links::of_cluster);
  if (peers) return crossed;
  if (const cluster::MeasuredExchange* curve = measured(kind, members, senders)) {
    crossed.estimate = estimate_of(*curve, bytes, [&](double size) {
      return size == bytes
                 ? crossed.estimate
                 : by_law(kind, members, size, peers, senders, Links::of_cluster).estimate;
    });
    if (const auto time = curve->at(bytes); time.beyond > 1) {
      const Estimate alone =
          by_law(kind, members, bytes, peers, senders, Links::unmeasured).estimate;
      cap(std::max(log_width(alone), log_scatter(time)), crossed.estimate);
    }
    crossed.measured = measured_basis(*cluster_, kind, members);
  } else {
    correct(kind, members, bytes, senders, crossed);
  }
  if (crossed.measured.empty()) return crossed;
  // The bytes on a NIC take no longer than the whole.
  const double most_us = 0.95 * crossed.estimate.time_us;
  if (crossed.stream_us > most_us) {
    crossed.nic_share *= crossed.stream_us / most_us;
    crossed.stream_us = most_us;
  }
  return crossed;
}

Estimate PortModel::price(Collective kind, std::span<const int> members, double bytes,
                          Senders senders) const {
  const Span span = span_of(members, *cluster_);
  if (span.gpus < 2) {
    throw Error(fmt::format("{} {} of one GPU with itself is a copy, not communication",
                            article(kind), name_of(kind)));
  }
  if (span.domains > 1) return across(kind, members, bytes, std::nullopt, senders).estimate;
  if (const cluster::MeasuredExchange* curve = find_measured(*cluster_, kind, members)) {
    return DomainCurves(*profile_, *cluster_).of_curve(*curve, kind, bytes);
  }
  return DomainCurves(*profile_, *cluster_).collective(kind, span.gpus, bytes);
}

}  // namespace moesim::network
