#include "sim/network/topology/calibrate_links.hpp"

#include <algorithm>

namespace moesim::network {

std::vector<int> links_of(const Plane& plane) {
  std::vector<int> links;
  const auto add = [&](const std::vector<int>& more) {
    links.insert(links.end(), more.begin(), more.end());
  };
  add(plane.port_up);
  add(plane.port_down);
  for (const Tier& tier : plane.tiers) {
    add(tier.up);
    add(tier.down);
  }
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  return links;
}

void scale(Topology& topology, const std::vector<int>& links, double factor) {
  for (const int link : links) {
    topology.links[static_cast<std::size_t>(link)].bandwidth.bytes_per_second *= factor;
  }
}

void scale_nics(Topology& topology, double share) {
  scale(topology, links_of({topology.outer.port_up, topology.outer.port_down, {}}), share);
}

void set_port_latency(Topology& topology, const Plane& plane, Picoseconds path_latency) {
  const auto set = [&](const std::vector<int>& links, Picoseconds latency) {
    for (const int link : links) topology.links[static_cast<std::size_t>(link)].latency = latency;
  };
  const Picoseconds up(path_latency.count / 2);
  set(plane.port_up, up);
  set(plane.port_down, path_latency - up);
}

void calibrate_inside(Topology& topology, double link_us, const MeasuredTime& time) {
  const std::vector<int> links = links_of(topology.inner);
  scale(topology, links, link_us / (time.time_us - time.latency_us()));
  for (const int link : links) {
    topology.links[static_cast<std::size_t>(link)].latency = Picoseconds(0);
  }
  set_port_latency(topology, topology.inner, Picoseconds::from_us(time.latency_us()));
}

}  // namespace moesim::network
