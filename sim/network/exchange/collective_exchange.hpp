#pragma once

#include <cstdint>
#include <span>

#include "sim/base/units.hpp"
#include "sim/network/schedules/exchange_times.hpp"
#include "sim/network/topology/topology.hpp"
#include "sim/profile/collective.hpp"

namespace moesim::network {

// How a reduction or a gather travels.
enum class CollectiveAlgorithm { ring, tree };

// All-reduce, all-gather or reduce-scatter of nccl-tests' per-rank buffer of `bytes` among all
// ranks of the topology; an all-to-all is the uniform byte matrix under `burst`. Rings pass every
// rank of a domain before the next domain; N - 1 rounds (2 (N - 1) for an all-reduce) of
// bytes / N each. Trees (all-reduce only) reduce to a root and broadcast down a binary tree over
// domains, a chain inside each, in pipelined slices. Of a domain's latency a hop pays no more than
// NCCL reckons with, 3.4 us in rings and 4 us in trees; the rest is the start, paid once. Throws
// UsageError for an algorithm that the collective does not have.
ExchangeTimes simulate_collective(const Topology& topology, profile::Collective kind,
                                  std::int64_t bytes, std::span<const Picoseconds> start,
                                  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring);

}  // namespace moesim::network
