#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/network/flows/flow_times.hpp"

namespace moesim::network {

// Every message of a byte matrix at once, each from the start of its source: one per rank, or empty
// for all at 0. FlowTimes::finish is [source * ranks + destination].
inline FlowTimes run_exchange(const Topology& topology, const ByteMatrix& bytes,
                              std::span<const Picoseconds> start = {},
                              const FlowOptions& options = {}) {
  std::vector<Flow> flows;
  for (int source = 0; source < bytes.ranks(); ++source) {
    const Picoseconds begin =
        start.empty() ? Picoseconds(0) : start[static_cast<std::size_t>(source)];
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      flows.push_back({source, destination, bytes.at(source, destination), begin});
    }
  }
  return run_flows(topology, flows, options);
}

}  // namespace moesim::network
