#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/schedules/exchange_settings.hpp"
#include "sim/network/topology/topology.hpp"
#include "sim/profile/collective.hpp"

namespace moesim::network {

// When an exchange is over. Times count from the origin of the start times.
struct ExchangeTimes {
  Picoseconds makespan;  // when the last byte arrives; 0 if there is none
  // The later of a rank's last byte sent and received; its own start if it has neither.
  std::vector<Picoseconds> rank_finish;
  Method used = Method::flows;  // flows or fast
  Picoseconds lower, upper;     // the makespan is certain to lie here; equal under flows
  Picoseconds tolerance{0};     // of flows: see flow_tolerance(); 0 for those told apart exactly
};

// What the flows of a burst of so many ranks, of a size each, may be off by before their rates are
// fitted again (FlowOptions::tolerance): 1 ps, 1 ns from 256 ranks and 20 ns from 512 ranks on. The
// makespan is off by no more than a few times that.
Picoseconds flow_tolerance(int ranks);

// `start` is when each rank begins to send: one per rank, or empty for all at 0. The diagonal of
// the matrix is not sent. Throws UsageError for sizes that do not match, bytes below 0, settings
// out of range; Error for a topology that does not connect the ranks.
ExchangeTimes simulate_exchange(const Topology& topology, const ByteMatrix& bytes,
                                std::span<const Picoseconds> start, Schedule schedule,
                                const ExchangeSettings& settings = {});

// The peers that a rank sends to in NCCL's order, from itself in round 0 on. In round r it
// receives from the rank that sends to it in round r.
std::vector<int> nccl_peers(const Topology& topology, int rank);

// Expected rows that cross to a domain over rows bound for it, when each token chooses `choices`
// different experts of `experts` uniformly and independently, experts being spread evenly over
// `domains`: distinct domains over choices. Precondition: 1 <= choices <= experts,
// domains divides experts.
double distinct_share(int experts, int domains, int choices);

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
