#pragma once

#include <vector>

#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// The peers that a rank sends to in NCCL's order, from itself in round 0 on. In round r it
// receives from the rank that sends to it in round r. For tests: the order that the schedule has.
std::vector<int> nccl_peers(const Topology& topology, int rank);

}  // namespace moesim::network
