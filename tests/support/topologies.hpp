#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "sim/base/byte_matrix.hpp"
#include "sim/network/topology/topology.hpp"

// Shapes and byte matrices of the known answers.
namespace moesim::support {

inline constexpr std::int64_t mib = 1048576;
inline constexpr std::int64_t ps_per_us = 1000000;

inline int add_link(network::Topology& topology, const std::string& name, double bytes_per_second,
                    std::int64_t latency_ps) {
  topology.links.push_back({name, Bandwidth(bytes_per_second), Picoseconds(latency_ps)});
  return static_cast<int>(topology.links.size()) - 1;
}

// A full-duplex port of 50e9 B/s and 500 ns per rank on an ideal crossbar: a route of 1 us.
inline network::Topology switch_of(int ranks) {
  return network::crossbar(ranks, Bandwidth(50e9), Picoseconds(500000));
}

// Groups of 8 whose ranks reach each other over a second port of 450e9 B/s (a route of 1 us),
// others over the first, of 50e9 B/s (2 us).
inline network::Topology node8(int ranks) {
  network::Topology topology = network::crossbar(ranks, Bandwidth(50e9), Picoseconds(1000000));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    topology.domain_of[static_cast<std::size_t>(rank)] = rank / 8;
    topology.inner.port_up.push_back(add_link(topology, name + " inner up", 450e9, 500000));
    topology.inner.port_down.push_back(add_link(topology, name + " inner down", 450e9, 500000));
  }
  return topology;
}

// The switch, with leaves of `ranks_per_leaf` ranks below a spine: `leaf` B/s up and down, 0 ns.
inline network::Topology tree2(int ranks, int ranks_per_leaf = 16, double leaf = 16 * 25e9) {
  network::Topology topology = switch_of(ranks);
  network::Tier tier;
  for (int rank = 0; rank < ranks; ++rank) tier.switch_of.push_back(rank / ranks_per_leaf);
  for (int first = 0; first < ranks; first += ranks_per_leaf) {
    const std::string name = "leaf " + std::to_string(first / ranks_per_leaf);
    tier.up.push_back(add_link(topology, name + " up", leaf, 0));
    tier.down.push_back(add_link(topology, name + " down", leaf, 0));
  }
  topology.outer.tiers.push_back(tier);
  return topology;
}

template <typename BytesOf>
ByteMatrix matrix_of(int ranks, BytesOf&& bytes_of) {
  ByteMatrix bytes(ranks);
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source != destination) bytes.at(source, destination) = bytes_of(source, destination);
    }
  }
  return bytes;
}

inline ByteMatrix uniform(int ranks) {
  return matrix_of(ranks, [](int /*source*/, int /*destination*/) { return mib; });
}

// N MiB w_j / sum of w, w_j = 1 / (j + 1), j the destination.
inline ByteMatrix zipf1(int ranks) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += 1.0 / (rank + 1);
  return matrix_of(ranks, [&](int /*source*/, int destination) {
    return std::llround(ranks * static_cast<double>(mib) / (destination + 1) / sum);
  });
}

// max(1, round(1 MiB (0.5 + u))), u the fraction of (i N + j + 1) times the golden ratio.
inline ByteMatrix routed(int ranks) {
  return matrix_of(ranks, [&](int source, int destination) {
    const double turns = static_cast<double>(source * ranks + destination + 1) * 0.6180339887498949;
    return std::max<std::int64_t>(
        1, std::llround(static_cast<double>(mib) * (0.5 + turns - std::floor(turns))));
  });
}

}  // namespace moesim::support
