#include "sim/step/exchanges/exchange_links.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "sim/cluster/rank_placement.hpp"
#include "sim/network/ports/domain_curves.hpp"
#include "sim/network/ports/port_bounder.hpp"
#include "sim/network/ports/port_model.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "sim/step/prices/prices.hpp"

namespace moesim::step {
namespace {

// All transfers on these links take `factor` times as long.
void slow_down(network::Topology& topology, const std::vector<int>& links, double factor) {
  network::scale(topology, links, 1 / factor);
  for (const int number : links) {
    Picoseconds& latency = topology.links[static_cast<std::size_t>(number)].latency;
    latency = Picoseconds::rounded(static_cast<double>(latency.count) * factor);
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
  topology_ = network::topology_of(*scenario.cluster, cluster::contiguous_placement(scenario.gpus));
  slow_down(topology_, network::links_of(topology_.outer), model_.exchange_multiplier());
  if (block_ > 0) {
    calibrate_inside();
    calibrate_between();
  }
  for (const scenario::GpuFactor& slow : scenario.conditions.slow_links) {
    const auto gpu = static_cast<std::size_t>(slow.gpu);
    for (const network::Plane* plane : {&topology_.inner, &topology_.outer}) {
      if (plane->port_up.empty()) continue;
      network::scale(topology_, {plane->port_up[gpu], plane->port_down[gpu]}, 1 / slow.factor);
    }
  }
}

void ExchangeLinks::calibrate_inside() {
  const scenario::Scenario& scenario = model_.scenario();
  const int members = std::min(scenario.expert_parallel, scenario.cluster->gpus_per_domain);
  if (members < 2) return;
  inside_.members = members;
  inside_.peers = members - 1;
  inside_.time_us = [this, members](double buffer) {
    const scenario::Scenario& of = model_.scenario();
    return network::DomainCurves(*of.profile, *of.cluster)
               .collective(profile::Collective::all_to_all, members, buffer)
               .time_us *
           model_.exchange_multiplier();
  };
  inside_.reference_buffer = block_ * members;
  inside_.reference = {inside_.time_us(inside_.reference_buffer), inside_.time_us(1)};
  const double link_us = busiest_us_per_byte(*scenario.cluster, members) * block_;
  network::calibrate_inside(topology_, link_us, inside_.reference);
}

// NICs take all of a uniform exchange but the time of the smallest: also what the law adds for the
// part inside a domain, which goes before the crossing.
void ExchangeLinks::calibrate_between() {
  const scenario::Scenario& scenario = model_.scenario();
  const cluster::Cluster& cluster = *scenario.cluster;
  if (cluster.nic_start.value == 0) return;
  const std::vector<int> members =
      farthest_group(engine::blocks(scenario.gpus, scenario.expert_parallel).groups, cluster);
  const network::Span span = network::span_of(members, cluster);
  if (span.domains < 2) return;
  const network::PortModel ports(scenario.profile, scenario.cluster);
  const auto across = [ports, members](double buffer) {
    return ports.across(profile::Collective::all_to_all, members, buffer);
  };
  const double multiplier = model_.exchange_multiplier();
  between_.members = span.gpus;
  between_.peers = span.gpus - span.smallest_share;
  between_.time_us = [across, multiplier](double buffer) {
    return across(buffer).estimate.time_us * multiplier;
  };
  between_.reference_buffer = block_ * span.gpus;
  const network::PortModel::Crossed crossed = across(between_.reference_buffer);
  between_.reference = {crossed.estimate.time_us * multiplier,
                        between_.time_us(static_cast<double>(span.gpus))};
  const double latency_us = between_.reference.latency_us();
  const double sending_us = (between_.reference.time_us - latency_us) / multiplier;
  network::scale_nics(topology_, crossed.nic_share * crossed.stream_us / sending_us);
  // That of switches above the NICs is in the law's time.
  for (const int link : network::links_of(topology_.outer)) {
    topology_.links[static_cast<std::size_t>(link)].latency = Picoseconds(0);
  }
  network::set_port_latency(topology_, topology_.outer, Picoseconds::from_us(latency_us));
}

void ExchangeLinks::adjust(int first, ByteMatrix& bytes) {
  const cluster::Cluster& cluster = *model_.scenario().cluster;
  const int members = bytes.ranks();
  std::vector<int> domains;
  for (int member = 0; member < members; ++member) {
    domains.push_back(cluster.domain_of(first + member));
  }
  const auto side_of = [&](int source, int destination) {
    return static_cast<std::size_t>(domains[static_cast<std::size_t>(source)] !=
                                    domains[static_cast<std::size_t>(destination)]);
  };
  std::array<std::vector<std::int64_t>, 2> in;  // [side][destination]
  for (std::vector<std::int64_t>& side : in) side.resize(static_cast<std::size_t>(members));
  std::array<std::int64_t, 2> busiest{};
  for (int source = 0; source < members; ++source) {
    std::array<std::int64_t, 2> out{};
    for (int destination = 0; destination < members; ++destination) {
      if (source == destination) continue;
      const std::size_t side = side_of(source, destination);
      const std::int64_t sent = bytes.at(source, destination);
      out[side] += sent;
      in[side][static_cast<std::size_t>(destination)] += sent;
    }
    for (std::size_t side = 0; side < 2; ++side) busiest[side] = std::max(busiest[side], out[side]);
  }
  std::array<double, 2> factors{};
  for (std::size_t side = 0; side < 2; ++side) {
    for (const std::int64_t received : in[side]) busiest[side] = std::max(busiest[side], received);
    factors[side] = stretch(busiest[side], side == 0 ? inside_ : between_);
  }
  for (int source = 0; source < members; ++source) {
    for (int destination = 0; destination < members; ++destination) {
      std::int64_t& sent = bytes.at(source, destination);
      if (sent == 0 || source == destination) continue;
      const double factor = factors[side_of(source, destination)];
      sent = std::max<std::int64_t>(1, std::llround(static_cast<double>(sent) * factor));
    }
  }
}

// The ratio of the bytes that take the exchange's time on these links to the actual bytes. Where
// that time is below the latency, one hundredth of it is left for the bytes.
double ExchangeLinks::stretch(std::int64_t busiest, Side& side) {
  if (busiest == 0 || side.peers == 0) return 1;
  const auto [found, added] = side.stretched.try_emplace(busiest);
  if (!added) return found->second;
  const double buffer = static_cast<double>(busiest) * side.members / side.peers;
  const double time_us = side.time_us(buffer);
  const double latency_us = side.reference.latency_us();
  const double sending_us = std::max(time_us - latency_us, 0.01 * time_us);
  const double per_byte = (side.reference.time_us - latency_us) / side.reference_buffer;
  return found->second = sending_us / (per_byte * buffer);
}

network::Topology ExchangeLinks::topology(double slower) const {
  network::Topology topology = topology_;
  slow_down(topology, network::links_of(topology.inner), slower);
  slow_down(topology, network::links_of(topology.outer), slower);
  return topology;
}

}  // namespace moesim::step
