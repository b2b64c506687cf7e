#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesim::routing {

class ChoiceTable;
class Decision;
struct GroupPlace;
struct RoutingJob;

// Tokens that some GPU or node has to have, each counted once however many of its kept routes go
// there: what an exchange without duplicates sends. A GPU's own and its own node's are among them.
// Nodes are NVLink domains, counted from the first one that the group has a GPU in.
struct TokenCopies {
  std::vector<std::int32_t> to_gpu;   // [gpu, rank of its group]
  std::vector<std::int32_t> to_node;  // [gpu, node of its group]: group_nodes() of them
};

// The most nodes that an expert-parallel group of the job lies on.
int group_nodes(const RoutingJob& job);
// The node of a GPU of the job, counted as above.
std::size_t node_in_group(const RoutingJob& job, int gpu);

// Those of one group after its decision; its ranks are the GPUs. `choices`: k', of the routes that
// may be kept. `nodes`: of a row of to_node.
void count_copies(const ChoiceTable& table, const Decision& decision, int choices,
                  const GroupPlace& place, int nodes, TokenCopies& copies);

}  // namespace moesim::routing
