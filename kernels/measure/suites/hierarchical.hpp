#pragma once

#include <vector>

namespace moesim::kernels::measure {

// A stretch of `chunks` chunks from chunk `first` of a buffer, to or from rank `peer` of a group.
struct Stretch {
  int peer = 0;
  int first = 0;
  int chunks = 0;
};
// What one rank sends and receives at once; in each pair of ranks the order of the sends is that of
// the receives.
struct Transfers {
  std::vector<Stretch> sends;
  std::vector<Stretch> receives;
};

// An equal all-to-all of nodes * gpus_per_node ranks in two steps, no rows repacked between them:
// first inside each node to the GPU with the receiver's place there, from the input to a staging
// buffer; then among the GPUs of the same place across nodes, from staging to the output. A chunk
// is what one rank sends to one other; all three buffers hold one per rank. Every chunk crosses the
// network once, in messages gpus_per_node times as long as those of a flat all-to-all (the
// hierarchical all-to-all of Rajbhandari et al. 2022, "DeepSpeed-MoE").
struct HierarchicalPlan {
  Transfers inside;  // peers: places in the node
  Transfers across;  // peers: nodes
};
// The plan of rank node * gpus_per_node + place; it is the same for all of them.
HierarchicalPlan hierarchical_plan(int nodes, int gpus_per_node);

}  // namespace moesim::kernels::measure
