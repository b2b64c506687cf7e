#include "sim/network/topology.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

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

void check_plane(const Plane& plane, const char* name, std::size_t ranks) {
  const bool complete = plane.port_up.size() == ranks && plane.port_down.size() == ranks;
  if (!complete) throw Error(fmt::format("topology: not every rank has a port {}", name));
  if (2 * (plane.tiers.size() + 1) > Route::max_links) {
    throw Error(fmt::format("topology: {} tiers of switches {}: at most {} are supported",
                            plane.tiers.size(), name, Route::max_links / 2 - 1));
  }
  for (const Tier& tier : plane.tiers) {
    if (tier.switch_of.size() == ranks) continue;
    throw Error(fmt::format("topology: not every rank has a switch {}", name));
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
  bool shared = false;
  bool apart = false;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    (topology.domain_of[rank] == topology.domain_of[rank - 1] ? shared : apart) = true;
  }
  if (shared) check_plane(topology.inner, "inside its domain", ranks);
  if (apart) check_plane(topology.outer, "towards other domains", ranks);
  for (const Link& link : topology.links) {
    const double rate = link.bandwidth.bytes_per_second;
    if (!(rate > 0) || !std::isfinite(rate)) {
      throw Error(
          fmt::format("topology: {}: a bandwidth of {} B/s carries nothing", link.name, rate));
    }
    if (link.latency < Picoseconds(0)) {
      throw Error(fmt::format("topology: {}: a latency below 0", link.name));
    }
  }
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
