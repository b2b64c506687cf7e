#include "sim/network/topology/cluster_topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/cluster/rank_placement.hpp"

namespace moesim::network {
namespace {

using cluster::Cluster;
using cluster::Level;

struct Pair {
  int up = 0;
  int down = 0;
};

// Ports and switches are numbered on the whole cluster; a job has links to those it touches only.
class Builder {
 public:
  Builder(const Cluster& cluster, std::span<const int> gpu_of_rank, LinkRate rate)
      : cluster_(cluster), gpus_(gpu_of_rank), rate_(rate) {}

  Topology build() {
    for (const int gpu : gpus_) topology_.domain_of.push_back(cluster_.domain_of(gpu));
    std::vector<int> domains = topology_.domain_of;
    std::sort(domains.begin(), domains.end());
    const bool shared = std::adjacent_find(domains.begin(), domains.end()) != domains.end();
    if (shared) build_inner();
    if (domains.front() != domains.back()) build_outer();
    return std::move(topology_);
  }

 private:
  double share(double low, double median, double high) const {
    return rate_ == LinkRate::low ? low : rate_ == LinkRate::high ? high : median;
  }

  Pair add(const std::string& name, double bytes_per_second, double latency_us) {
    const Picoseconds way = Picoseconds::from_us(latency_us);
    const Picoseconds up(way.count / 2);
    const int link = static_cast<int>(topology_.links.size());
    topology_.links.push_back({name + " up", Bandwidth(bytes_per_second), up});
    topology_.links.push_back({name + " down", Bandwidth(bytes_per_second), way - up});
    return {link, link + 1};
  }

  void build_inner() {
    const cluster::Domain& domain = cluster_.domain;
    const cluster::Efficiency& of = domain.efficiency;
    const double efficiency = share(of.low, of.value, of.high);
    for (const int gpu : gpus_) {
      const Pair port = add(fmt::format("GPU {} {}", gpu, domain.kind),
                            domain.port.bytes_per_second * efficiency, domain.latency_us);
      topology_.inner.port_up.push_back(port.up);
      topology_.inner.port_down.push_back(port.down);
    }
    for (const Level& level : domain.levels) {
      add_tier(topology_.inner, level, efficiency, [&](int gpu) { return gpu / level.below; });
    }
  }

  void build_outer() {
    const double efficiency =
        share(cluster_.nic_efficiency_low, cluster_.nic_efficiency, cluster_.nic_efficiency_high);
    const int ports = cluster_.ports_per_node();
    const int nics_of_port = std::max(1, cluster_.nics_per_node / cluster_.gpus_per_node);
    const double bandwidth = cluster_.nic.bytes_per_second * nics_of_port * efficiency;
    std::unordered_map<std::int64_t, Pair> built;  // by NIC of the cluster
    for (const int gpu : gpus_) {
      const int node = cluster_.node_of(gpu);
      const int nic = cluster_.nic_of(gpu);
      const auto [at, is_new] =
          built.try_emplace(static_cast<std::int64_t>(node) * cluster_.nics_per_node + nic);
      if (is_new) {
        at->second =
            add(fmt::format("node {} NIC {}", node, nic), bandwidth, cluster_.nic_latency_us);
      }
      topology_.outer.port_up.push_back(at->second.up);
      topology_.outer.port_down.push_back(at->second.down);
    }
    for (const Level& level : cluster_.levels) {
      const bool by_rail = cluster_.rails && topology_.outer.tiers.empty();
      add_tier(topology_.outer, level, efficiency, [&](int gpu) {
        const int group = cluster_.node_of(gpu) / level.below;
        if (!by_rail) return group;
        return group * ports + cluster_.nic_of(gpu) / nics_of_port;
      });
    }
  }

  // `number` is the switch of the cluster that a GPU is below.
  template <typename Number>
  void add_tier(Plane& plane, const Level& level, double efficiency, Number number) {
    Tier tier;
    std::unordered_map<int, int> index_of;
    for (const int gpu : gpus_) {
      const int number_of_gpu = number(gpu);
      const auto [at, is_new] =
          index_of.try_emplace(number_of_gpu, static_cast<int>(index_of.size()));
      if (is_new) {
        const Pair links = add(fmt::format("{} {}", level.name, number_of_gpu),
                               level.uplink.bytes_per_second * efficiency, level.latency_us);
        tier.up.push_back(links.up);
        tier.down.push_back(links.down);
      }
      tier.switch_of.push_back(at->second);
    }
    plane.tiers.push_back(std::move(tier));
  }

  const Cluster& cluster_;
  std::span<const int> gpus_;
  LinkRate rate_;
  Topology topology_;
};

}  // namespace

Topology topology_of(const Cluster& cluster, std::span<const int> gpu_of_rank, LinkRate rate) {
  cluster::check_placement(cluster, gpu_of_rank);
  return Builder(cluster, gpu_of_rank, rate).build();
}

}  // namespace moesim::network
