#include "sim/network/exchange/exchange_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/network/ports/cluster_measurements.hpp"
#include "sim/network/ports/domain_curves.hpp"
#include "sim/network/ports/port_bounder.hpp"
#include "sim/network/topology/calibrate_links.hpp"
#include "sim/network/topology/domains.hpp"

namespace moesim::network {
namespace {

using profile::Collective;
using profile::Estimate;

// The links of a topology without latencies, and so much slower that the bytes of a small message
// are not lost in the rounding to picoseconds.
constexpr double slower = 1 << 20;
Topology bare_links(const Topology& topology) {
  Topology bare = topology;
  for (Link& link : bare.links) {
    link.latency = Picoseconds(0);
    link.bandwidth.bytes_per_second /= slower;
  }
  return bare;
}

// What stays inside domains; all of an exchange is no more than that for the ranks of one domain.
ByteMatrix inside_part(const Topology& topology, const ByteMatrix& bytes) {
  ByteMatrix inside(bytes.ranks());
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      if (source == destination || !topology.same_domain(source, destination)) continue;
      inside.at(source, destination) = bytes.at(source, destination);
    }
  }
  return inside;
}

// What leaves domains.
ByteMatrix outside_part(const Topology& topology, const ByteMatrix& bytes) {
  ByteMatrix outside(bytes.ranks());
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      if (topology.same_domain(source, destination)) continue;
      outside.at(source, destination) = bytes.at(source, destination);
    }
  }
  return outside;
}

bool crosses_domains(const Topology& topology, const ByteMatrix& bytes) {
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      if (bytes.at(source, destination) > 0 && !topology.same_domain(source, destination)) {
        return true;
      }
    }
  }
  return false;
}

double quantile(const Estimate& estimate, LinkRate rate) {
  return rate == LinkRate::high  ? estimate.time_us_p05
         : rate == LinkRate::low ? estimate.time_us_p95
                                 : estimate.time_us;
}

bool same_links(const Topology& one, const Topology& other) {
  return std::equal(one.links.begin(), one.links.end(), other.links.begin(), other.links.end(),
                    [](const Link& left, const Link& right) {
                      return left.bandwidth == right.bandwidth && left.latency == right.latency;
                    });
}

// The time that the busiest link needs at least.
double port_bound_us(const Topology& topology, const ByteMatrix& bytes,
                     std::span<const Picoseconds> start, const ExchangeSchedule& schedule,
                     const ExchangeSettings& settings) {
  const std::vector<Picoseconds> zeros(start.empty() ? static_cast<std::size_t>(topology.ranks())
                                                     : 0);
  const ExchangeRequest request{topology, bytes, start.empty() ? zeros : start, settings};
  PortBounder bounder(topology);
  bounder.starts_are(PortBounder::Starts::at_least);
  return bounder.bound(bytes_on_links(schedule, request), request.start).lower.us();
}

std::string schedule_note(const ExchangeSchedule& schedule, const ExchangeSettings& settings) {
  const std::string assumed = schedule.assumptions == nullptr ? "" : schedule.assumptions(settings);
  return fmt::format("schedule {}{}", schedule.name, assumed);
}

}  // namespace

// What the profile says of the part that stays inside.
struct ExchangeModel::Inside {
  int gpus = 0;            // of the largest domain
  double link_us = 0;      // of the busiest link on the document's links, without latency
  Estimate time;           // of a uniform exchange that loads that link as much
  double smallest_us = 0;  // of the smallest exchange
};

// The links that an exchange runs on.
struct ExchangeModel::Links {
  Topology topology;
  std::optional<Estimate> inside;  // calibrated by it
  std::string not_measured;        // why not
  int gpus = 0;
};

// What the law between domains says of a uniform exchange that loads the busiest NIC as much.
struct ExchangeModel::Crossing {
  PortModel::Crossed crossed;
  double more_us = 0;  // than the links take, which carry both parts at once
};

ExchangeModel::ExchangeModel(std::shared_ptr<const profile::Profile> profile,
                             std::shared_ptr<const cluster::Cluster> cluster,
                             ExchangeSettings settings)
    : profile_(std::move(profile)),
      cluster_(std::move(cluster)),
      settings_(std::move(settings)),
      ports_(profile_, cluster_) {}

ExchangeModel::Inside ExchangeModel::measured_inside(const Topology& topology,
                                                     const ByteMatrix& bytes) const {
  Inside inside;
  for (const auto& members : Domains(topology).ranks) {
    inside.gpus = std::max(inside.gpus, static_cast<int>(members.size()));
  }
  const Topology bare = bare_links(topology);
  PortBounder bounder(bare);
  ByteMatrix uniform(topology.ranks());
  constexpr std::int64_t block = 1 << 20;
  for (int source = 0; source < topology.ranks(); ++source) {
    std::fill(uniform.row(source), uniform.row(source) + topology.ranks(), block);
  }
  const double uniform_us = bounder.bound(inside_part(topology, uniform)).lower.us() / slower;
  inside.link_us = bounder.bound(inside_part(topology, bytes)).lower.us() / slower;
  if (inside.gpus < 2 || inside.link_us == 0) return inside;
  const double buffer = static_cast<double>(block) * inside.gpus * inside.link_us / uniform_us;
  const DomainCurves curves(*profile_, *cluster_);
  inside.time = curves.collective(Collective::all_to_all, inside.gpus, buffer);
  inside.smallest_us = curves.collective(Collective::all_to_all, inside.gpus, 1).time_us;
  return inside;
}

ExchangeModel::Links ExchangeModel::links(std::span<const int> members, const ByteMatrix& bytes,
                                          const ExchangeSchedule& schedule, LinkRate rate) const {
  Links links;
  links.topology = topology_of(*cluster_, members, rate);
  if (bytes.ranks() != links.topology.ranks()) {
    throw UsageError(fmt::format("byte matrix of {} ranks for {} GPUs: expected the same number",
                                 bytes.ranks(), links.topology.ranks()));
  }
  if (!schedule.runs_nccl || profile_ == nullptr) return links;
  const ByteMatrix inner_bytes = schedule.bytes_inside == nullptr
                                     ? bytes
                                     : schedule.bytes_inside(Domains(links.topology), bytes);
  Inside inside;
  try {
    inside = measured_inside(links.topology, inner_bytes);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    links.not_measured = error.what();
    return links;
  }
  links.gpus = inside.gpus;
  if (inside.gpus < 2 || inside.link_us == 0) return links;
  links.inside = inside.time;
  // The latency of the smallest exchange, in the same proportion at every quantile.
  const double time_us = quantile(inside.time, rate);
  const double smallest_us = inside.smallest_us * time_us / inside.time.time_us;
  calibrate_inside(links.topology, inside.link_us, {time_us, smallest_us});
  return links;
}

ExchangeModel::Crossing ExchangeModel::crossing(const Topology& topology,
                                                std::span<const int> members,
                                                const ByteMatrix& bytes,
                                                const ExchangeSchedule& schedule) const {
  const Topology bare = bare_links(topology);
  PortBounder bounder(bare);
  const double nic_us = bounder.bound(outside_part(topology, bytes)).lower.us();
  constexpr std::int64_t block = 1 << 20;
  ByteMatrix uniform(topology.ranks());
  for (int source = 0; source < topology.ranks(); ++source) {
    std::fill_n(uniform.row(source), topology.ranks(), block);
  }
  const double uniform_us = bounder.bound(outside_part(topology, uniform)).lower.us();
  const double buffer = static_cast<double>(block) * topology.ranks() * nic_us / uniform_us;
  Crossing crossing;
  if (schedule.bytes_inside != nullptr) {
    // The parts inside are messages of the schedule; each GPU sends to one of every other domain.
    const int others = span_of(members, *cluster_).domains - 1;
    crossing.crossed = ports_.across(Collective::all_to_all, members, buffer, others);
    crossing.more_us = std::max(crossing.crossed.start_us - cluster_->nic_latency_us, 0.0);
  } else {
    crossing.crossed = ports_.across(Collective::all_to_all, members, buffer);
    const PortModel::Crossed& law = crossing.crossed;
    const double links_us = std::max(law.inside_us, cluster_->nic_latency_us + law.stream_us);
    crossing.more_us = std::max(law.estimate.time_us - links_us, 0.0);
  }
  return crossing;
}

// `on` are the links of the median.
ExchangeAnswer ExchangeModel::across(const Links& on, std::span<const int> members,
                                     const ByteMatrix& bytes, std::span<const Picoseconds> start,
                                     const ExchangeSchedule& schedule) const {
  const Crossing law = crossing(on.topology, members, bytes, schedule);
  Topology topology = on.topology;
  scale_nics(topology, law.crossed.nic_share);
  ExchangeSettings settings = settings_;
  if (on.inside) settings.nccl.low_latency_bytes = 0;
  const ExchangeTimes times = simulate_exchange(topology, bytes, start, schedule, settings);
  ExchangeAnswer answer;
  answer.used = times.used;
  answer.lower_us = times.lower.us() + law.more_us;
  answer.upper_us = times.upper.us() + law.more_us;
  const ByteMatrix outside = outside_part(topology, bytes);
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    std::int64_t crossing_bytes = 0;
    for (int other = 0; other < topology.ranks(); ++other) {
      crossing_bytes += outside.at(rank, other) + outside.at(other, rank);
    }
    answer.rank_finish_us.push_back(times.rank_finish[index_of(rank)].us() +
                                    (crossing_bytes > 0 ? law.more_us : 0));
  }
  Estimate& estimate = answer.estimate;
  const Estimate& uniform = law.crossed.estimate;
  estimate.time_us = times.makespan.us() + law.more_us;
  estimate.time_us_p05 = estimate.time_us * uniform.time_us_p05 / uniform.time_us;
  estimate.time_us_p95 = estimate.time_us * uniform.time_us_p95 / uniform.time_us;
  estimate.origin = uniform.origin;
  estimate.support = uniform.support;
  answer.provenance = fmt::format(
      "{}; started {:.3g} us after the links alone would, as an even exchange of these "
      "bytes",
      provenance(on, true, schedule, times.used), law.more_us);
  return answer;
}

std::string ExchangeModel::provenance(const Links& links, bool crosses,
                                      const ExchangeSchedule& schedule, Method used) const {
  std::string text;
  if (links.inside) {
    const DomainCurves curves(*profile_, *cluster_);
    const cluster::MeasuredExchange* own = curves.own(Collective::all_to_all, links.gpus);
    const std::string scaled = own != nullptr ? own->origin : curves.basis();
    text = fmt::format("inside a domain {} ({} GPUs{})", describe(*links.inside), links.gpus,
                       scaled.empty() ? "" : "; " + scaled);
  } else if (!links.topology.inner.port_up.empty()) {
    text = fmt::format("inside a domain {}", cluster_->domain.efficiency.origin);
    if (!links.not_measured.empty()) text += fmt::format(" (profile: {})", links.not_measured);
  }
  if (crosses) {
    if (!text.empty()) text += "; ";
    text += fmt::format("NICs at {:.3g} of line rate ({:.3g} to {:.3g}), {}",
                        cluster_->nic_efficiency, cluster_->nic_efficiency_low,
                        cluster_->nic_efficiency_high, cluster_->efficiency_origin);
  }
  if (text.empty()) text = "nothing to send";
  return fmt::format("{}; {}; network {}", text, schedule_note(schedule, settings_), name_of(used));
}

std::string ExchangeModel::basis(Collective kind, std::span<const int> members,
                                 double bytes) const {
  const Span span = span_of(members, *cluster_);
  if (const cluster::MeasuredExchange* curve = find_measured(*cluster_, kind, members)) {
    if (span.domains == 1) {
      return "; " + DomainCurves(*profile_, *cluster_).basis_of(*curve, kind, bytes);
    }
    const bool outside = curve->at(bytes).beyond > 1;
    return fmt::format("; {}{}", curve->origin,
                       outside ? "; outside its sizes the law between nodes, scaled" : "");
  }
  std::string inside;
  if (span.largest_share > 1) {
    const DomainCurves curves(*profile_, *cluster_);
    const int gpus = span.largest_share;
    const std::string measured = curves.measured(kind, gpus, bytes_inside(kind, span, bytes));
    inside = curves.own(kind, gpus) == nullptr ? curves.basis() : "";
    if (!inside.empty() && !measured.empty()) inside += "; ";
    inside += measured;
  }
  if (span.domains == 1) return inside.empty() ? "" : "; " + inside;
  const PortModel::Crossed crossed = ports_.across(kind, members, bytes);
  std::string text =
      fmt::format("; two-level: curve inside a domain{}, {} between",
                  inside.empty() ? "" : fmt::format(" ({})", inside), crossed.algorithm);
  if (!crossed.measured.empty()) return text + ", " + crossed.measured;
  if (*crossed.next != 0) text += fmt::format(" (upper end: {})", crossed.next);
  return text;
}

ExchangeAnswer ExchangeModel::exchange(std::span<const int> members, const ByteMatrix& bytes,
                                       std::span<const Picoseconds> start,
                                       const ExchangeSchedule& schedule) const {
  const Links on = links(members, bytes, schedule, LinkRate::median);
  const bool crosses = crosses_domains(on.topology, bytes);
  if (crosses && schedule.runs_nccl && profile_ != nullptr) {
    return across(on, members, bytes, start, schedule);
  }
  ExchangeSettings settings = settings_;
  if (on.inside) settings.nccl.low_latency_bytes = 0;
  const ExchangeTimes times = simulate_exchange(on.topology, bytes, start, schedule, settings);
  // The error bar of flows is that of the ports, in proportion: a simulation for each end of it
  // would cost as much again. Links without an error bar, as of ideal clusters, need neither.
  bool scaled = false;
  double median_bound_us = 0;
  const auto makespan_us = [&](LinkRate rate) {
    const Links other = links(members, bytes, schedule, rate);
    if (same_links(on.topology, other.topology)) return times.makespan.us();
    if (times.used == Method::fast) {
      ExchangeSettings bounded = settings;
      bounded.method = Method::fast;
      return simulate_exchange(other.topology, bytes, start, schedule, bounded).makespan.us();
    }
    if (!scaled) {
      median_bound_us = port_bound_us(on.topology, bytes, start, schedule, settings);
      scaled = true;
    }
    if (median_bound_us == 0) return times.makespan.us();
    return times.makespan.us() / median_bound_us *
           port_bound_us(other.topology, bytes, start, schedule, settings);
  };
  ExchangeAnswer answer;
  Estimate& estimate = answer.estimate;
  estimate.time_us = times.makespan.us();
  estimate.time_us_p05 = std::min(estimate.time_us, makespan_us(LinkRate::high));
  estimate.time_us_p95 = std::max(estimate.time_us, makespan_us(LinkRate::low));
  estimate.origin = crosses     ? profile::Origin::assumed
                    : on.inside ? on.inside->origin
                                : profile::Origin::datasheet;
  estimate.support = on.inside ? on.inside->support : profile::Support::interpolated;
  for (const Picoseconds finish : times.rank_finish) answer.rank_finish_us.push_back(finish.us());
  answer.used = times.used;
  answer.lower_us = times.lower.us();
  answer.upper_us = times.upper.us();
  answer.provenance = provenance(on, crosses, schedule, times.used);
  if (times.tolerance > Picoseconds(1)) {
    answer.provenance += fmt::format(" to some {:.0f} ns", times.tolerance.us() * 1e3);
  }
  if (scaled) answer.provenance += ", p05 and p95 in proportion to the busiest link's";
  return answer;
}

Estimate ExchangeModel::price(Collective kind, std::span<const int> members, double bytes,
                              Senders senders) const {
  Estimate estimate = ports_.price(kind, members, bytes, senders);
  if (span_of(members, *cluster_).domains == 1) return estimate;
  if (ports_.measured(kind, members, senders) != nullptr) return estimate;  // switches and all
  const double above_us = us_per_byte_above(kind, members, *cluster_, senders) * bytes;
  if (above_us == 0) return estimate;
  const auto no_faster = [&](double time_us, double efficiency) {
    return std::max(time_us,
                    cluster_->nic_latency_us + above_us * cluster_->nic_efficiency / efficiency);
  };
  estimate.time_us = no_faster(estimate.time_us, cluster_->nic_efficiency);
  estimate.time_us_p05 = no_faster(estimate.time_us_p05, cluster_->nic_efficiency_high);
  estimate.time_us_p95 = no_faster(estimate.time_us_p95, cluster_->nic_efficiency_low);
  return estimate;
}

}  // namespace moesim::network
