#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/network/flows/flow.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

struct FlowOptions {
  // Simulate flows that are provably equal as one: see fold(). The times are the same.
  bool fold = true;
  // Exchanges of 512 flows and more, most of them of sizes of their own, between ports alone: with
  // 1 ps and at most 256 ports a side all ends are exact to their rounding (RefilledFlows). Else a
  // link's level is fitted only when its flows would be off by about this (DenseFlows), which is
  // faster. Errors of links below add up on those above, so that this is no bound: of the ends of
  // 64 "routed" ranks (1.4 ms), 1 ns is off by 0.3 us at most and 5 ns on average. 0 is exact too,
  // by the method for all other flows (Transfers), and slower.
  Picoseconds tolerance{1};
};

// What it took to find the times.
struct FlowCounts {
  std::int64_t flows = 0;          // with something to send to another rank
  std::int64_t classes = 0;        // of equal flows; flows when nothing was folded
  std::int64_t events = 0;         // different times at which flows enter or end
  std::int64_t level_changes = 0;  // of a link: all flows it holds back change their rate
  std::int64_t evaluations = 0;    // of a link's level
  std::int64_t fillings = 0;       // of all levels
  bool dense = false;              // by RefilledFlows or DenseFlows
  Picoseconds correction;          // DenseFlows: the most that one fit made up for; no bound
  std::int64_t moves = 0;          // of a flow from one link that holds it back to another
};

// When flows end, under max-min shares.
struct FlowTimes {
  std::vector<Picoseconds> finish;  // [flow]
  // When the last byte arrives; 0 if there is none. Flows that send nothing, for having no bytes
  // or being from a rank to itself, end at their start and do not count.
  Picoseconds makespan;
  // For each rank, the later of its last byte sent and received; its own start if it neither sends
  // nor receives: the latest of its flows that send nothing, 0 if it has no flows at all.
  std::vector<Picoseconds> rank_finish;
  FlowCounts counts;
};

// Throws as check(topology) and check(topology, flow) do, UsageError for a tolerance below 0.
FlowTimes run_flows(const Topology& topology, std::span<const Flow> flows,
                    const FlowOptions& options = {});

}  // namespace moesim::network
