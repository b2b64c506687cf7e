#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "sim/network/flows/flow.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// Max-min sharing as its definition says, in O(flows^2 links): all rates are recomputed by
// progressive filling whenever a flow begins or ends. Long doubles, nothing in common with the
// solver. Returns the end of each flow in picoseconds.
inline std::vector<double> naive_flows(const Topology& topology, std::span<const Flow> flows) {
  const std::size_t count = flows.size();
  std::vector<long double> enters(count), rest(count), ends(count), rate(count);
  std::vector<std::vector<int>> ways(count);
  for (std::size_t flow = 0; flow < count; ++flow) {
    const Flow& one = flows[flow];
    enters[flow] = ends[flow] = static_cast<long double>(one.start.count);
    rest[flow] = static_cast<long double>(one.bytes);
    if (one.source == one.destination) rest[flow] = 0;
    if (rest[flow] == 0) continue;
    const Route route = topology.route(one.source, one.destination);
    ways[flow].assign(route.begin(), route.end());
    enters[flow] += static_cast<long double>(topology.latency(route).count);
  }
  const auto fill = [&](const std::vector<std::size_t>& active) {
    std::vector<long double> free(topology.links.size());
    std::vector<int> users(topology.links.size());
    for (std::size_t link = 0; link < free.size(); ++link) {
      free[link] = topology.links[link].bandwidth.bytes_per_second * 1e-12L;
    }
    for (const std::size_t flow : active) {
      for (const int link : ways[flow]) ++users[static_cast<std::size_t>(link)];
    }
    std::vector<std::size_t> open = active;
    while (!open.empty()) {
      long double level = std::numeric_limits<long double>::infinity();
      for (std::size_t link = 0; link < free.size(); ++link) {
        if (users[link] > 0) level = std::min(level, free[link] / users[link]);
      }
      std::vector<std::size_t> next, settled;
      for (const std::size_t flow : open) {
        const bool stuck = std::any_of(ways[flow].begin(), ways[flow].end(), [&](int link) {
          const auto index = static_cast<std::size_t>(link);
          return free[index] / users[index] <= level * (1 + 1e-15L);
        });
        (stuck ? settled : next).push_back(flow);
      }
      for (const std::size_t flow : settled) {
        rate[flow] = level;
        for (const int link : ways[flow]) {
          free[static_cast<std::size_t>(link)] -= level;
          --users[static_cast<std::size_t>(link)];
        }
      }
      open = next;
    }
  };
  long double now = -std::numeric_limits<long double>::infinity();
  while (true) {
    long double event = std::numeric_limits<long double>::infinity();
    std::vector<std::size_t> active;
    for (std::size_t flow = 0; flow < count; ++flow) {
      if (rest[flow] <= 0) continue;
      if (enters[flow] > now) {
        event = std::min(event, enters[flow]);
      } else {
        active.push_back(flow);
      }
    }
    fill(active);
    for (const std::size_t flow : active) event = std::min(event, now + rest[flow] / rate[flow]);
    if (event == std::numeric_limits<long double>::infinity()) break;
    for (const std::size_t flow : active) {
      const long double left = rest[flow] / rate[flow] - (event - now);
      rest[flow] = left <= 1e-7L ? 0 : left * rate[flow];
      if (rest[flow] == 0) ends[flow] = event;
    }
    now = event;
  }
  return {ends.begin(), ends.end()};
}

}  // namespace moesim::network
