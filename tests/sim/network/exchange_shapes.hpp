#pragma once

#include <cmath>
#include <cstdint>

#include "sim/base/byte_matrix.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

constexpr std::int64_t mebibyte = 1048576;

// 1 MiB to every other rank.
inline ByteMatrix uniform_matrix(int ranks, std::int64_t bytes = mebibyte) {
  ByteMatrix matrix(ranks);
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source != destination) matrix.at(source, destination) = bytes;
    }
  }
  return matrix;
}

// Destination j gets N * 1 MiB * w_j / sum w of each source, w_j = 1 / (j + 1).
inline ByteMatrix zipf_matrix(int ranks) {
  ByteMatrix matrix(ranks);
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += 1.0 / (rank + 1);
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source == destination) continue;
      matrix.at(source, destination) =
          std::llround(ranks * static_cast<double>(mebibyte) / (destination + 1) / sum);
    }
  }
  return matrix;
}

// 1 MiB times 0.5 to 1.5, from the golden ratio's multiples: all sizes different.
inline ByteMatrix routed_matrix(int ranks) {
  ByteMatrix matrix(ranks);
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source == destination) continue;
      const double turns =
          (static_cast<double>(source) * ranks + destination + 1) * 0.6180339887498949;
      matrix.at(source, destination) =
          std::max<std::int64_t>(1, std::llround(mebibyte * (0.5 + turns - std::floor(turns))));
    }
  }
  return matrix;
}

inline Topology ideal_switch(int ranks) {
  return crossbar(ranks, Bandwidth(50e9), Picoseconds(500'000));
}

// Pairs inside a group of 8 use links of 450e9 B/s, 500 ns each; others NICs of 50e9 B/s, 1 us.
inline Topology ideal_node8(int ranks, int node = 8) {
  Topology topology = crossbar(ranks, Bandwidth(50e9), Picoseconds(1'000'000));
  const Topology inside = crossbar(ranks, Bandwidth(450e9), Picoseconds(500'000));
  const auto offset = static_cast<int>(topology.links.size());
  topology.links.insert(topology.links.end(), inside.links.begin(), inside.links.end());
  topology.inner = inside.outer;
  for (int& link : topology.inner.port_up) link += offset;
  for (int& link : topology.inner.port_down) link += offset;
  for (int rank = 0; rank < ranks; ++rank) {
    topology.domain_of[static_cast<std::size_t>(rank)] = rank / node;
  }
  return topology;
}

// Adds leaf switches of `hosts` ranks above the ports of the outer plane.
inline void add_leaves(Topology& topology, int hosts, Bandwidth uplink, Picoseconds latency) {
  Tier tier;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const int leaf = rank / hosts;
    tier.switch_of.push_back(leaf);
    if (leaf < static_cast<int>(tier.up.size())) continue;
    tier.up.push_back(static_cast<int>(topology.links.size()));
    topology.links.push_back({"leaf up", uplink, latency});
    tier.down.push_back(static_cast<int>(topology.links.size()));
    topology.links.push_back({"leaf down", uplink, latency});
  }
  topology.outer.tiers.push_back(tier);
}

// 16 hosts per leaf, leaf up and down 16 * 25e9 B/s of 0 ns.
inline Topology ideal_tree2(int ranks) {
  Topology topology = ideal_switch(ranks);
  add_leaves(topology, 16, Bandwidth(16 * 25e9), Picoseconds(0));
  return topology;
}

}  // namespace moesim::network
