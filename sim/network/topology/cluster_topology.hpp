#pragma once

#include <span>

#include "sim/cluster/cluster.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// Which efficiency of the document the links have: its median, or the ends of its error bar.
enum class LinkRate { low, median, high };

// The links among ranks that sit on these GPUs of a cluster: rank r on GPU gpu_of_rank[r], any
// number and order, whole nodes or not (sim/cluster/rank_placement.hpp makes the usual lists).
//
// Link::bandwidth is what an exchange reaches: the line rate times the efficiency of the domain or,
// outside it, of the NICs (ideal documents have efficiency 1). A document's latency is that of a
// whole way: half of it is on the links up, half on those down.
//
// Only links that these ranks can use are there. NICs that several GPUs share are one link.
//
// Throws UsageError naming document and key: a rank without a place (a GPU below 0, beyond the
// cluster's nodes, or another rank's), ranks in several domains of a cluster without NICs.
Topology topology_of(const cluster::Cluster& cluster, std::span<const int> gpu_of_rank,
                     LinkRate rate = LinkRate::median);

}  // namespace moesim::network
