#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/network/flows/flow_table.hpp"

namespace moesim::network {

// Flows between first and second links, such as ports into and out of a switch, as a matrix. Each
// side has `width` places, the second links are those from `width` on.
struct FlowMatrix {
  struct Entry {
    std::int64_t time;            // picoseconds
    std::uint32_t first, second;  // places
    std::uint32_t flow;
    double bytes;
  };
  struct End {
    std::uint32_t flow;
    std::int64_t time;  // picoseconds
  };

  // Nothing unless a matrix suits the flows: there are many, of many sizes, every route has two
  // links, links divide into first and second ones, no pair of links has two flows and an eighth of
  // the pairs has one.
  static std::optional<FlowMatrix> of(const FlowTable& flows);

  std::size_t width() const { return 64 * words; }

  std::size_t words = 0;               // of 64 places of a side
  std::vector<double> capacity;        // [link] bytes per picosecond; 1 where there is no link
  std::vector<std::uint32_t> flow_at;  // [first, second]
  std::vector<Entry> entries;          // by time
};

}  // namespace moesim::network
