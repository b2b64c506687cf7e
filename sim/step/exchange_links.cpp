#include "sim/step/exchange_links.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/cluster/rank_placement.hpp"
#include "sim/network/ports/domain_curves.hpp"
#include "sim/network/ports/port_bounder.hpp"
#include "sim/network/ports/port_model.hpp"
#include "sim/network/topology/cluster_topology.hpp"

namespace moesim::step {
namespace {

// All transfers on these links take `factor` times as long.
void slow_down(network::Topology& topology, const std::vector<int>& links, double factor) {
  network::scale(topology, links, 1 / factor);
  for (const int number : links) {
    Picoseconds& latency = topology.links[static_cast<std::size_t>(number)].latency;
    latency = Picoseconds(std::llround(static_cast<double>(latency.count) * factor));
  }
}

// The time, in us, that the busiest link needs when the first `gpus` GPUs of a domain send one byte
// to each other, with the links of the document.
double busiest_us_per_byte(const cluster::Cluster& cluster, int gpus) {
  network::Topology topology = network::topology_of(cluster, cluster::contiguous_placement(gpus));
  for (network::Link& link : topology.links) link.latency = Picoseconds(0);
  constexpr std::int64_t block = std::int64_t{1} << 36;  // large: rounding to ps is negligible
  ByteMatrix bytes(gpus);
  for (int source = 0; source < gpus; ++source) std::fill_n(bytes.row(source), gpus, block);
  return network::PortBounder(topology).bound(bytes).lower.us() / static_cast<double>(block);
}

}  // namespace

ExchangeLinks::ExchangeLinks(const StepModel& model, double block) : model_(model), block_(block) {
  const scenario::Scenario& scenario = model.scenario();
  inside_ = std::min(scenario.expert_parallel, scenario.cluster->gpus_per_domain);
  topology_ = network::topology_of(*scenario.cluster, cluster::contiguous_placement(scenario.gpus));
  slow_down(topology_, network::links_of(topology_.outer), model_.exchange_multiplier());
  calibrate_inside();
  calibrate_between();
  for (const scenario::GpuFactor& slow : scenario.conditions.slow_links) {
    const auto gpu = static_cast<std::size_t>(slow.gpu);
    for (const network::Plane* plane : {&topology_.inner, &topology_.outer}) {
      if (plane->port_up.empty()) continue;
      network::scale(topology_, {plane->port_up[gpu], plane->port_down[gpu]}, 1 / slow.factor);
    }
  }
}

network::MeasuredTime ExchangeLinks::curve(double buffer) const {
  const network::DomainCurves curves(*model_.scenario().profile, *model_.scenario().cluster);
  const auto curve_us = [&](double bytes) {
    return curves.collective(profile::Collective::all_to_all, inside_, bytes).time_us *
           model_.exchange_multiplier();
  };
  return {curve_us(buffer), curve_us(1)};
}

void ExchangeLinks::calibrate_inside() {
  if (inside_ < 2 || block_ == 0) return;
  const double link_us = busiest_us_per_byte(*model_.scenario().cluster, inside_) * block_;
  network::calibrate_inside(topology_, link_us, curve(block_ * inside_));
}

// NICs reach the share of their efficiency that the law between nodes says, and all that a uniform
// exchange takes beside its bytes on them is latency.
void ExchangeLinks::calibrate_between() {
  const scenario::Scenario& scenario = model_.scenario();
  const cluster::Cluster& cluster = *scenario.cluster;
  const std::vector<int> members = cluster::contiguous_placement(scenario.expert_parallel);
  if (block_ == 0 || cluster.nic_start.value == 0) return;
  if (network::span_of(members, cluster).domains < 2) return;
  const network::PortModel ports(scenario.profile, scenario.cluster);
  const network::PortModel::Crossed crossed =
      ports.across(profile::Collective::all_to_all, members, block_ * scenario.expert_parallel);
  network::scale_nics(topology_, crossed.nic_share);
  const double beside_us = crossed.estimate.time_us - crossed.stream_us;
  network::set_port_latency(topology_, topology_.outer,
                            Picoseconds::from_us(beside_us * model_.exchange_multiplier()));
}

void ExchangeLinks::adjust(int first, ByteMatrix& bytes) {
  if (inside_ < 2 || block_ == 0) return;
  const cluster::Cluster& cluster = *model_.scenario().cluster;
  const int members = bytes.ranks();
  const auto together = [&](int source, int destination) {
    return source != destination &&
           cluster.domain_of(first + source) == cluster.domain_of(first + destination);
  };
  std::vector<std::int64_t> in(static_cast<std::size_t>(members));
  std::int64_t busiest = 0;
  for (int source = 0; source < members; ++source) {
    std::int64_t out = 0;
    for (int destination = 0; destination < members; ++destination) {
      if (!together(source, destination)) continue;
      out += bytes.at(source, destination);
      in[static_cast<std::size_t>(destination)] += bytes.at(source, destination);
    }
    busiest = std::max(busiest, out);
  }
  for (const std::int64_t received : in) busiest = std::max(busiest, received);
  if (busiest == 0) return;
  const double factor = stretch(busiest);
  for (int source = 0; source < members; ++source) {
    for (int destination = 0; destination < members; ++destination) {
      if (!together(source, destination)) continue;
      std::int64_t& sent = bytes.at(source, destination);
      if (sent == 0) continue;
      sent = std::max<std::int64_t>(1, std::llround(static_cast<double>(sent) * factor));
    }
  }
}

// The ratio of the bytes that take the curve's time on these links to the actual bytes. Where a
// curve falls below the latency of its smallest size, one hundredth of its time is left for the
// bytes.
double ExchangeLinks::stretch(std::int64_t busiest) {
  const auto [found, added] = stretch_.try_emplace(busiest);
  if (!added) return found->second;
  const network::MeasuredTime reference = curve(block_ * inside_);
  const double buffer = static_cast<double>(busiest) * inside_ / (inside_ - 1);
  const double time_us = curve(buffer).time_us;
  const double sending_us = std::max(time_us - reference.latency_us(), 0.01 * time_us);
  const double per_byte = (reference.time_us - reference.latency_us()) / (block_ * inside_);
  return found->second = sending_us / (per_byte * buffer);
}

network::Topology ExchangeLinks::topology(double slower) const {
  network::Topology topology = topology_;
  slow_down(topology, network::links_of(topology.inner), slower);
  slow_down(topology, network::links_of(topology.outer), slower);
  return topology;
}

}  // namespace moesim::step
