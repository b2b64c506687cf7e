#include "kernels/measure/suites/hierarchical.hpp"

namespace moesim::kernels::measure {

HierarchicalPlan hierarchical_plan(int nodes, int gpus_per_node) {
  HierarchicalPlan plan;
  for (int place = 0; place < gpus_per_node; ++place) {
    for (int node = 0; node < nodes; ++node) {
      plan.inside.sends.push_back({place, node * gpus_per_node + place, 1});
      // Staging is ordered by the node that a chunk goes to, then by who sent it.
      plan.inside.receives.push_back({place, node * gpus_per_node + place, 1});
    }
  }
  for (int node = 0; node < nodes; ++node) {
    plan.across.sends.push_back({node, node * gpus_per_node, gpus_per_node});
    plan.across.receives.push_back({node, node * gpus_per_node, gpus_per_node});
  }
  return plan;
}

}  // namespace moesim::kernels::measure
