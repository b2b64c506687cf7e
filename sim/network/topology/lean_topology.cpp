#include "sim/network/topology/lean_topology.hpp"

#include <cstddef>
#include <map>
#include <vector>

namespace moesim::network {
namespace {

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
bool drop_idle_tiers(const std::vector<bool>& nonbinding, Plane& plane) {
  const std::size_t before = plane.tiers.size();
  for (std::size_t level = before; level-- > 0;) {
    const Tier& tier = plane.tiers[level];
    if (!all_nonbinding(nonbinding, tier)) continue;
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
  const std::vector<bool> nonbinding = nonbinding_uplinks(whole);
  smaller_ = drop_idle_tiers(nonbinding, lean_.inner);
  smaller_ = drop_idle_tiers(nonbinding, lean_.outer) || smaller_;
}

Picoseconds LeanTopology::delay(int source, int destination) const {
  if (!smaller_) return Picoseconds(0);
  return whole_.latency(whole_.route(source, destination)) -
         lean_.latency(lean_.route(source, destination));
}

}  // namespace moesim::network
