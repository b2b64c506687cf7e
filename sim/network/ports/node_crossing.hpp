#pragma once

#include <vector>

#include "sim/profile/collective.hpp"

namespace moesim::network {

// What a collective puts between domains (nodes, where these are no larger). Bytes are those of the
// busiest NIC, or of one GPU's share of it where a GPU has several.
struct CrossingLoad {
  profile::Collective kind = profile::Collective::all_to_all;
  int ranks = 0;
  int domains = 0;            // at least 2
  int per_domain = 0;         // members of the fullest domain
  int peers = 0;              // of an all-to-all: to which a rank sends over its NIC
  double nic_bytes = 0;       // of an all-to-all, or of rings
  double tree_nic_bytes = 0;  // of an all-reduce as trees: tree_turns() of the buffer
  double buffer_bytes = 0;    // nccl-tests' size
};

// What the links and their software cost besides the bytes.
struct CrossingCosts {
  double latency_us = 0;  // of one message from node to node
  // Multiplies the start of an all-to-all, its root those of rings and trees, whose steps are
  // better known; 0: ideal links, without software.
  double start = 1;
  bool switch_reduces = false;  // inside a domain the switch does (NVLS); no chain of GPUs waits
};

// How the part inside a domain, I, and the bytes on the NIC, C, make up the time T; I(0) is the
// part inside of the smallest size, and f bytes move inside for each of I.
enum class Beside {
  after,    // T = I + start + C
  stream,   // T = I(0) + start + max(C, (I - I(0)) f)
  steps,    // T = start + max(C, (I - S) f): the start holds all steps, of which S are those of I
  together  // T = max(I, start + C)
};

// One way in which NCCL may carry the exchange out.
struct CrossingPlan {
  const char* name = "";
  Beside beside = Beside::stream;
  double start_us = 0;
  double nic_bytes = 0;
  double share = 1;            // of what a single stream reaches on a NIC
  double least_us = 0;         // C is no less: the protocol's own limit
  double inside_bytes = 1;     // f above
  double inside_steps_us = 0;  // S above
};

// What the busiest of `domains` sends as trees, in buffers. NCCL has two binary trees with half of
// the buffer each, up and down, and the inner nodes of one are the leaves of the other: 3 + 1
// neighbours from four domains on (its own model, src/graph/tuning.cc, reckons 2 buffers for all).
double tree_turns(int domains);

// All ways that NCCL may choose from; it is taken to choose the fastest.
//
// All-to-all: the part inside a domain, then the crossing. Its start grows with the peers behind
// other NICs, and with the bytes V of a NIC, as its pipelines fill round after round:
//   start = latency + 1.5 us + 1 us peers + 95 us V / (V + 4 MB)
// and its bytes reach 95 % of a single stream's rate. The constants are rounded from
// least-squares fits to five public systems together; profiles/BETWEEN_NODES.md has the
// errors with the efficiency and one factor on the start fitted without each.
//
// Rings (all-gather, reduce-scatter, all-reduce) pass (P - 1) / P of the buffer over the border of
// every node, spread over one ring per NIC, in P - 1 steps, N - 1 of them between nodes
// (all-reduce: twice both). A step takes what NCCL's model of itself reckons (src/graph/tuning.cc:
// hwLat, baseLat): with its Simple protocol 3.4 us on NVLink and 14 us between nodes; with LL 0.6
// x 1.8 us, and between nodes a message's latency. LL's flags leave 45 % of the rate, and all its
// channels together no more than 39 GB/s busbw on 2 nodes and 20.4 on more (llMaxBws). Trees
// (all-reduce) pass tree_turns(N) of the buffer through the NICs of the busiest of N domains, at
// 92 % of the rate, and wait for 2 log2(N) steps between nodes. LL128 is left out: its constants
// promise 90 us where 131 were published (SimAI: 16 MiB, 2 nodes).
std::vector<CrossingPlan> crossing_plans(const CrossingLoad& load, const CrossingCosts& costs);

}  // namespace moesim::network
