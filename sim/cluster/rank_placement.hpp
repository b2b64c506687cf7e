#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"

namespace moesim::cluster {

// Where the ranks of a job sit: gpu_of_rank[r] is the GPU of rank r, counted over the cluster.

// How many ranks of a job sit on each domain. Nodes of 8 and racks that the job fills are full; of
// racks that it does not fill as many are used on each, at least half a rack if such a number
// divides the ranks, whole nodes if it can be: 64 of 72 for 128, 512 or 1,024 ranks.
int usual_ranks_per_domain(const Cluster& cluster, int ranks);
// Ranks one after another, so many on each domain. Where the last domain has no place for its
// ranks, as contiguous_placement().
std::vector<int> even_placement(const Cluster& cluster, int ranks);
// The cluster whose domains are the parts of racks that such a job uses, so that rank r sits on its
// GPU r; `cluster` itself where these are full, or no whole nodes.
std::shared_ptr<const Cluster> on_parts_of_domains(std::shared_ptr<const Cluster> cluster,
                                                   int ranks);
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
