#include "sim/network/topology/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::network {
namespace {

void append(const Plane& plane, std::size_t source, std::size_t destination, Route& route) {
  route.push(plane.port_up[source]);
  std::size_t met = 0;
  while (met < plane.tiers.size() &&
         plane.tiers[met].switch_of[source] != plane.tiers[met].switch_of[destination]) {
    const Tier& tier = plane.tiers[met++];
    route.push(tier.up[static_cast<std::size_t>(tier.switch_of[source])]);
  }
  while (met > 0) {
    const Tier& tier = plane.tiers[--met];
    route.push(tier.down[static_cast<std::size_t>(tier.switch_of[destination])]);
  }
  route.push(plane.port_down[destination]);
}

// Checks one plane for the ranks that need it.
class PlaneCheck {
 public:
  PlaneCheck(const Topology& topology, const Plane& plane, const char* towards)
      : topology_(topology), plane_(plane), towards_(towards) {}

  // `needs` says of each rank whether it has anyone to reach through this plane.
  void run(const std::vector<bool>& needs) const {
    const std::size_t ranks = needs.size();
    if (plane_.port_up.size() > ranks || plane_.port_down.size() > ranks) {
      throw Error(fmt::format("topology: more ports {} than its {} ranks", towards_, ranks));
    }
    if (2 * (plane_.tiers.size() + 1) > Route::max_links) {
      throw Error(fmt::format("topology: {} levels of switches {}: at most {} are supported",
                              plane_.tiers.size(), towards_, Route::max_links / 2 - 1));
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (!needs[rank]) continue;
      if (!is_link(plane_.port_up, rank) || !is_link(plane_.port_down, rank)) {
        throw Error(fmt::format(
            "topology: rank {} has no port {}, and there are ranks it cannot reach without one",
            rank, towards_));
      }
    }
    for (std::size_t level = 0; level < plane_.tiers.size(); ++level) check_tier(level, needs);
  }

 private:
  bool is_link(const std::vector<int>& table, std::size_t row) const {
    return row < table.size() && table[row] >= 0 &&
           static_cast<std::size_t>(table[row]) < topology_.links.size();
  }

  void check_tier(std::size_t level, const std::vector<bool>& needs) const {
    const Tier& tier = plane_.tiers[level];
    for (std::size_t rank = 0; rank < needs.size(); ++rank) {
      if (!needs[rank]) continue;
      if (rank >= tier.switch_of.size() || tier.switch_of[rank] < 0) {
        throw Error(fmt::format("topology: rank {} is below no switch of level {} {}", rank,
                                level + 1, towards_));
      }
      const auto number = static_cast<std::size_t>(tier.switch_of[rank]);
      if (!is_link(tier.up, number) || !is_link(tier.down, number)) {
        throw Error(fmt::format("topology: switch {} of level {} {} has no link to the others",
                                number, level + 1, towards_));
      }
    }
  }

  const Topology& topology_;
  const Plane& plane_;
  const char* towards_;
};

void check_link(const Link& link) {
  const double rate = link.bandwidth.bytes_per_second;
  if (!(rate > 0) || !std::isfinite(rate)) {
    throw Error(
        fmt::format("topology: {}: a bandwidth of {} B/s carries nothing", link.name, rate));
  }
  if (link.latency < Picoseconds(0)) {
    throw Error(fmt::format("topology: {}: a latency below 0", link.name));
  }
}

// Marks the uplinks of a tier, in one direction, that bind no exchange; `ports` are the plane's in
// the same direction.
void find_nonbinding(const Topology& topology, const Tier& tier, const std::vector<int>& ports,
                     const std::vector<int>& uplinks, std::vector<bool>& nonbinding) {
  constexpr double rounding = 1e-10;  // of a sum over many thousand ports
  const auto rate_of = [&](int link) {
    return topology.links[static_cast<std::size_t>(link)].bandwidth.bytes_per_second;
  };
  std::vector<double> below(uplinks.size());
  std::set<std::pair<int, int>> counted;  // switch and port
  for (std::size_t rank = 0; rank < std::min(ports.size(), tier.switch_of.size()); ++rank) {
    const int number = tier.switch_of[rank];
    if (ports[rank] < 0 || number < 0 || !counted.insert({number, ports[rank]}).second) continue;
    if (static_cast<std::size_t>(number) >= below.size()) continue;
    below[static_cast<std::size_t>(number)] += rate_of(ports[rank]);
  }
  for (std::size_t number = 0; number < uplinks.size(); ++number) {
    const int link = uplinks[number];
    if (link < 0 || static_cast<std::size_t>(link) >= nonbinding.size()) continue;
    nonbinding[static_cast<std::size_t>(link)] = below[number] <= rate_of(link) * (1 + rounding);
  }
}

}  // namespace

Route Topology::route(int source, int destination) const {
  Route route;
  append(same_domain(source, destination) ? inner : outer, static_cast<std::size_t>(source),
         static_cast<std::size_t>(destination), route);
  return route;
}

Picoseconds Topology::latency(const Route& route) const {
  Picoseconds sum;
  for (const int link : route) sum += links[static_cast<std::size_t>(link)].latency;
  return sum;
}

void check(const Topology& topology) {
  const std::size_t ranks = topology.domain_of.size();
  if (ranks == 0) throw Error("topology: no ranks");
  std::map<int, std::size_t> size_of_domain;
  for (const int domain : topology.domain_of) ++size_of_domain[domain];
  std::vector<bool> shares(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    shares[rank] = size_of_domain[topology.domain_of[rank]] > 1;
  }
  PlaneCheck(topology, topology.inner, "inside its domain").run(shares);
  PlaneCheck(topology, topology.outer, "towards other domains")
      .run(std::vector<bool>(ranks, size_of_domain.size() > 1));
  for (const Link& link : topology.links) check_link(link);
}

std::vector<bool> nonbinding_uplinks(const Topology& topology) {
  std::vector<bool> nonbinding(topology.links.size());
  for (const Plane* plane : {&topology.inner, &topology.outer}) {
    for (const Tier& tier : plane->tiers) {
      find_nonbinding(topology, tier, plane->port_up, tier.up, nonbinding);
      find_nonbinding(topology, tier, plane->port_down, tier.down, nonbinding);
    }
  }
  return nonbinding;
}

bool all_nonbinding(const std::vector<bool>& nonbinding, const Tier& tier) {
  const auto holds = [&](int link) {
    return link < 0 || nonbinding[static_cast<std::size_t>(link)];
  };
  return std::all_of(tier.up.begin(), tier.up.end(), holds) &&
         std::all_of(tier.down.begin(), tier.down.end(), holds);
}

Topology crossbar(int ranks, Bandwidth port, Picoseconds latency) {
  Topology topology;
  topology.domain_of.resize(static_cast<std::size_t>(ranks));
  std::iota(topology.domain_of.begin(), topology.domain_of.end(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    topology.outer.port_up.push_back(2 * rank);
    topology.outer.port_down.push_back(2 * rank + 1);
    topology.links.push_back({fmt::format("rank {} up", rank), port, latency});
    topology.links.push_back({fmt::format("rank {} down", rank), port, latency});
  }
  return topology;
}

}  // namespace moesim::network
