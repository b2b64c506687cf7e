#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"

namespace moesim::cluster {

// Where the ranks of a job sit: gpu_of_rank[r] is the GPU of rank r, counted over the cluster.

// On each domain but the last, of as few as hold them: as many ranks as make the domains equal, 64
// of 128 ranks on racks of 72.
int even_ranks_per_domain(const Cluster& cluster, int ranks);
// Ranks one after another, so many on each domain, rounded up to whole nodes where the last domain
// keeps some. Where the last domain has no place for its ranks, as contiguous_placement().
std::vector<int> even_placement(const Cluster& cluster, int ranks);
// Rank r on GPU r: nodes are filled one after another, the last one perhaps in part.
std::vector<int> contiguous_placement(int ranks);
// Rank r on node r % n, where n nodes are just enough: consecutive ranks on different nodes.
std::vector<int> round_robin_placement(const Cluster& cluster, int ranks);
// "even", "contiguous", "round-robin", or the GPUs themselves, "0,8,1,9". Throws UsageError naming
// `what` (a flag or column): another word, a list of another length than `ranks`, as
// check_placement().
std::vector<int> parse_placement(const std::string& text, const Cluster& cluster, int ranks,
                                 const std::string& what);

// Throws UsageError naming document and key: no ranks, a rank without a place (a GPU below 0 or
// beyond the cluster's), two ranks on one GPU, ranks in two domains of a cluster without NICs.
void check_placement(const Cluster& cluster, std::span<const int> gpu_of_rank);

}  // namespace moesim::cluster
