#include "sim/network/ports/switch_limits.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "sim/base/numbers.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "sim/network/topology/domains.hpp"

namespace moesim::network {
namespace {

using cluster::Cluster;
using cluster::Level;
using profile::Collective;

bool is_rail(const Cluster& cluster, std::size_t level) { return cluster.rails && level == 0; }

// The way up of a node at each level of the fabric, bytes per second.
std::vector<double> uplink_of_node(const Cluster& cluster) {
  std::vector<double> rates;
  for (const Level& level : cluster.levels) {
    const int side_by_side = is_rail(cluster, rates.size()) ? cluster.ports_per_node() : 1;
    rates.push_back(level.uplink.bytes_per_second * side_by_side / level.below);
  }
  return rates;
}

// The GPUs below one switch of a level that send; of a rail's switch all.
double senders_below(const Cluster& cluster, std::size_t level, Senders senders) {
  const int side_by_side = is_rail(cluster, level) ? cluster.ports_per_node() : 1;
  const double all =
      static_cast<double>(cluster.levels[level].below) * cluster.gpus_per_node / side_by_side;
  if (side_by_side > 1) return all;
  return all * std::min(1.0, static_cast<double>(senders.per_domain) / cluster.gpus_per_domain);
}

// The bytes that come down to each switch of a tier, for each byte of the buffer. As many go up.
std::vector<double> blocks_passing(const Topology& topology, const Tier& tier,
                                   const std::vector<int>& nodes_below, const Domains& domains) {
  std::map<int, int> below;                   // ranks by nodes below one switch, or several rails'
  std::map<std::pair<int, int>, int> shared;  // of them those of one domain
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    ++below[nodes_below[rank]];
    ++shared[{nodes_below[rank], domains.domain_of[rank]}];
  }
  std::vector<double> passing(tier.down.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const int domain = domains.domain_of[rank];
    const std::size_t elsewhere = ranks - index_of(below[nodes_below[rank]]) -
                                  domains.ranks[index_of(domain)].size() +
                                  index_of(shared[{nodes_below[rank], domain}]);
    passing[index_of(tier.switch_of[rank])] +=
        static_cast<double>(elsewhere) / static_cast<double>(ranks);
  }
  return passing;
}

// The bytes that leave each switch of a tier, or reach it if that is more.
std::vector<double> rings_passing(Collective kind, const Topology& topology, const Tier& tier,
                                  const Domains& domains) {
  std::size_t rings = domains.ranks.front().size();
  for (const auto& domain : domains.ranks) rings = std::min(rings, domain.size());
  const auto ranks = static_cast<double>(topology.ranks());
  const double turns = kind == Collective::all_reduce ? 2 : 1;
  const double each = turns * (ranks - 1) / ranks / static_cast<double>(rings);
  std::vector<double> up(tier.up.size()), down(tier.up.size());
  for (std::size_t domain = 0; domain < domains.ranks.size(); ++domain) {
    const auto& from = domains.ranks[domain];
    const auto& to = domains.ranks[(domain + 1) % domains.ranks.size()];
    for (std::size_t ring = 0; ring < rings; ++ring) {
      const int source = tier.switch_of[index_of(from[ring])];
      const int destination = tier.switch_of[index_of(to[ring])];
      if (source == destination) continue;
      up[index_of(source)] += each;
      down[index_of(destination)] += each;
    }
  }
  for (std::size_t number = 0; number < up.size(); ++number) {
    up[number] = std::max(up[number], down[number]);
  }
  return up;
}

}  // namespace

bool has_less_above(const Cluster& cluster) {
  constexpr double rounding = 1e-9;
  const double of_nics = cluster.nic_per_gpu.bytes_per_second * cluster.gpus_per_node;
  const std::vector<double> rates = uplink_of_node(cluster);
  return std::any_of(rates.begin(), rates.end(),
                     [&](double rate) { return rate < of_nics * (1 - rounding); });
}

double us_per_byte_above(Collective kind, std::span<const int> members, const Cluster& cluster,
                         Senders senders) {
  if (!has_less_above(cluster)) return 0;
  const Topology topology = topology_of(cluster, members);
  const Domains domains(topology);
  const bool forwards = cluster.gpus_per_domain > 1 && cluster.domain.kind == "NVLink";
  double worst = 0;
  for (std::size_t number = 0; number < topology.outer.tiers.size(); ++number) {
    const Tier& tier = topology.outer.tiers[number];
    std::vector<double> passing;
    if (kind == Collective::all_to_all) {
      std::vector<int> nodes_below = tier.switch_of;
      if (forwards) {
        for (std::size_t rank = 0; rank < members.size(); ++rank) {
          nodes_below[rank] = cluster.node_of(members[rank]) / cluster.levels[number].below;
        }
      }
      passing = blocks_passing(topology, tier, nodes_below, domains);
    } else {
      passing = rings_passing(kind, topology, tier, domains);
    }
    std::vector<int> members_below(passing.size(), 0);
    for (const int of_switch : tier.switch_of) ++members_below[index_of(of_switch)];
    for (std::size_t each = 0; each < passing.size(); ++each) {
      double rate = topology.links[index_of(tier.up[each])].bandwidth.bytes_per_second;
      if (senders.per_domain > 0) {
        rate *= std::min(1.0, members_below[each] / senders_below(cluster, number, senders));
      }
      worst = std::max(worst, passing[each] / rate * 1e6);
    }
  }
  return worst;
}

double dispatch_nic_rate(const Cluster& cluster, const profile::DispatchGroup& group) {
  double rate = cluster.nic_per_gpu.bytes_per_second;
  const std::vector<double> uplinks = uplink_of_node(cluster);
  for (std::size_t level = 0; level < uplinks.size(); ++level) {
    const int gpus_below = cluster.levels[level].below * cluster.gpus_per_node;
    const int below = std::max(1, gpus_below / cluster.gpus_per_domain);  // domains
    if (group.domains() <= below) continue;
    const double leaving =
        static_cast<double>(group.domains() - below) / static_cast<double>(group.domains() - 1);
    rate = std::min(rate, uplinks[level] / cluster.gpus_per_node / leaving);
  }
  return rate;
}

double message_nic_rate(const Cluster& cluster, std::span<const std::pair<int, int>> messages) {
  double rate = cluster.nic_per_gpu.bytes_per_second;
  for (std::size_t level = 0; level < cluster.levels.size(); ++level) {
    const int side_by_side = is_rail(cluster, level) ? cluster.ports_per_node() : 1;
    const auto switch_of = [&](int gpu) {
      const int rail = gpu % cluster.gpus_per_node * side_by_side / cluster.gpus_per_node;
      return index_of(cluster.node_of(gpu) / cluster.levels[level].below * side_by_side + rail);
    };
    std::vector<int> up, down;  // messages through the uplink of each switch
    const auto count = [](std::vector<int>& ways, std::size_t of_switch) {
      if (ways.size() <= of_switch) ways.resize(of_switch + 1);
      ++ways[of_switch];
    };
    for (const auto& [source, destination] : messages) {
      const std::size_t from = switch_of(source);
      const std::size_t to = switch_of(destination);
      if (from == to || cluster.domain_of(source) == cluster.domain_of(destination)) continue;
      count(up, from);
      count(down, to);
    }
    for (const std::vector<int>& ways : {up, down}) {
      for (const int sharing : ways) {
        if (sharing == 0) continue;
        rate = std::min(rate, cluster.levels[level].uplink.bytes_per_second / sharing);
      }
    }
  }
  return rate;
}

}  // namespace moesim::network
