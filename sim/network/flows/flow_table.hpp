#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/network/flows/max_min.hpp"

namespace moesim::network {

// Flows with something to send, each with the links it passes and when it enters them.
struct FlowTable {
  std::size_t route_links = 0;        // room per route
  std::vector<double> capacity;       // [link] bytes per picosecond
  std::vector<std::int64_t> bytes;    // [flow] > 0
  std::vector<std::int64_t> entry;    // [flow] picoseconds
  std::vector<std::uint32_t> origin;  // [flow] its place among all the flows asked for
  std::vector<std::uint32_t> links;   // [flow, hop], a link that is passed twice stands twice
  std::vector<std::uint8_t> hops;     // [flow]

  std::size_t size() const { return bytes.size(); }
  std::span<const std::uint32_t> route(std::size_t flow) const {
    return {links.data() + flow * route_links, hops[flow]};
  }
};

}  // namespace moesim::network
