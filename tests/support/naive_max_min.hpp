#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sim/network/flows/flow.hpp"
#include "sim/network/topology/topology.hpp"

// Max-min flows from the definition, a flow and a link at a time: progressive filling again at
// every event. Slow, and shares no code with the solver.
namespace moesim::support {

struct NaiveFlow {
  std::vector<int> links;
  long double enters = 0;  // ps
  long double left = 0;    // bytes
  long double rate = 0;
  bool over = false;
  long double finish = 0;
};

inline void naive_shares(const std::vector<long double>& capacity,
                         std::vector<NaiveFlow*>& active) {
  std::vector<long double> left = capacity;
  std::vector<NaiveFlow*> open = active;
  while (!open.empty()) {
    std::vector<int> users(capacity.size(), 0);
    for (const NaiveFlow* flow : open) {
      for (const int link : flow->links) ++users[static_cast<std::size_t>(link)];
    }
    std::size_t full = 0;
    long double least = std::numeric_limits<long double>::infinity();
    for (std::size_t link = 0; link < capacity.size(); ++link) {
      if (users[link] > 0 && left[link] / users[link] < least) {
        least = left[link] / users[link];
        full = link;
      }
    }
    std::vector<NaiveFlow*> rest;
    for (NaiveFlow* flow : open) {
      if (std::count(flow->links.begin(), flow->links.end(), static_cast<int>(full)) == 0) {
        rest.push_back(flow);
        continue;
      }
      flow->rate = least;
      for (const int link : flow->links) {
        long double& room = left[static_cast<std::size_t>(link)];
        room = std::max(0.0L, room - least);
      }
    }
    open = std::move(rest);
  }
}

// The ends in picoseconds, not rounded; 0 bytes and flows to oneself end at their start.
inline std::vector<long double> naive_ends(const network::Topology& topology,
                                           const std::vector<network::Flow>& flows) {
  std::vector<long double> capacity;
  for (const network::Link& link : topology.links) {
    capacity.push_back(static_cast<long double>(link.bandwidth.bytes_per_second) / 1e12L);
  }
  std::vector<NaiveFlow> states;
  for (const network::Flow& flow : flows) {
    NaiveFlow state;
    state.enters = state.finish = static_cast<long double>(flow.start.count);
    state.left = static_cast<long double>(flow.bytes);
    state.over = flow.bytes == 0 || flow.source == flow.destination;
    if (!state.over) {
      const network::Route route = topology.route(flow.source, flow.destination);
      state.links.assign(route.begin(), route.end());
      state.enters += static_cast<long double>(topology.latency(route).count);
    }
    states.push_back(state);
  }
  long double now = 0;
  for (;;) {
    std::vector<NaiveFlow*> active;
    long double next = std::numeric_limits<long double>::infinity();
    for (NaiveFlow& state : states) {
      if (state.over) continue;
      if (state.enters <= now) {
        active.push_back(&state);
      } else {
        next = std::min(next, state.enters);
      }
    }
    naive_shares(capacity, active);
    for (const NaiveFlow* flow : active) next = std::min(next, now + flow->left / flow->rate);
    if (next == std::numeric_limits<long double>::infinity()) break;
    for (NaiveFlow* flow : active) {
      flow->left -= flow->rate * (next - now);
      if (flow->left > flow->rate * 1e-4L) continue;  // 1e-4 ps
      flow->over = true;
      flow->finish = next;
    }
    now = next;
  }
  std::vector<long double> ends;
  for (const NaiveFlow& state : states) ends.push_back(state.finish);
  return ends;
}

}  // namespace moesim::support
