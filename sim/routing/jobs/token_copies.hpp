#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesim::routing {

class ChoiceTable;
class Decision;
struct GroupPlace;
struct RoutingJob;

// Tokens that each GPU or node needs, each counted once regardless of how many of its kept routes
// go there: what an exchange without duplicates sends. Includes the tokens of the GPU itself and of
// its own node. Nodes are NVLink domains, numbered from the first one with a GPU of the group.
struct TokenCopies {
  std::vector<std::int32_t> to_gpu;   // [gpu, rank of its group]
  std::vector<std::int32_t> to_node;  // [gpu, node of its group]: group_nodes() of them
};

// The largest number of nodes of any expert-parallel group of the job.
int group_nodes(const RoutingJob& job);
// The node of a GPU of the job, numbered as above.
std::size_t node_in_group(const RoutingJob& job, int gpu);

// Counts one group after its decision; its ranks are the GPUs. `choices`: k', the routes that may
// be kept. `nodes`: the length of a row of to_node.
void count_copies(const ChoiceTable& table, const Decision& decision, int choices,
                  const GroupPlace& place, int nodes, TokenCopies& copies);

}  // namespace moesim::routing
