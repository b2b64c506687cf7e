#include "sim/network/topology/lean_topology.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace moesim::network {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Sums of many equal rates are off by their rounding.
constexpr double rounding = 1e-9;

// Whether all that the ports below a switch can send fits through its way up, for every switch.
bool carries_all(const Topology& topology, const Tier& tier, const std::vector<int>& ports,
                 const std::vector<int>& ways) {
  std::vector<std::set<int>> below(ways.size());
  for (std::size_t rank = 0; rank < ports.size(); ++rank) {
    if (ports[rank] >= 0 && tier.switch_of[rank] >= 0) {
      below[at(tier.switch_of[rank])].insert(ports[rank]);
    }
  }
  const auto rate = [&](int link) { return topology.links[at(link)].bandwidth.bytes_per_second; };
  for (std::size_t number = 0; number < ways.size(); ++number) {
    double together = 0;
    for (const int port : below[number]) together += rate(port);
    if (together > rate(ways[number]) * (1 + rounding)) return false;
  }
  return true;
}

// Whether ranks of one switch of `lower` have one switch of `upper`, so that routes without `lower`
// still meet below `upper`.
bool lies_within(const Tier& lower, const Tier& upper) {
  std::map<int, int> above;
  for (std::size_t rank = 0; rank < lower.switch_of.size(); ++rank) {
    const int expected =
        above.try_emplace(lower.switch_of[rank], upper.switch_of[rank]).first->second;
    if (expected != upper.switch_of[rank]) return false;
  }
  return true;
}

// Returns whether a tier went.
bool drop_idle_tiers(const Topology& whole, Plane& plane) {
  const std::size_t before = plane.tiers.size();
  for (std::size_t level = before; level-- > 0;) {
    const Tier& tier = plane.tiers[level];
    if (!carries_all(whole, tier, plane.port_up, tier.up)) continue;
    if (!carries_all(whole, tier, plane.port_down, tier.down)) continue;
    if (level + 1 < plane.tiers.size() && !lies_within(tier, plane.tiers[level + 1])) continue;
    plane.tiers.erase(plane.tiers.begin() + static_cast<std::ptrdiff_t>(level));
  }
  return plane.tiers.size() < before;
}

const Topology& checked(const Topology& topology) {
  check(topology);
  return topology;
}

}  // namespace

LeanTopology::LeanTopology(const Topology& whole) : whole_(checked(whole)), lean_(whole) {
  smaller_ = drop_idle_tiers(whole, lean_.inner);
  smaller_ = drop_idle_tiers(whole, lean_.outer) || smaller_;
}

Picoseconds LeanTopology::delay(int source, int destination) const {
  if (!smaller_) return Picoseconds(0);
  return whole_.latency(whole_.route(source, destination)) -
         lean_.latency(lean_.route(source, destination));
}

}  // namespace moesim::network
