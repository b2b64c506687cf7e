#pragma once

#include "sim/routing/routing_simulation.hpp"

namespace moesim::tool {

// Routes the replicas of one job on `jobs` threads into `cache`: one scenario is evaluated by one
// thread, and routing is most of its work. Shows its progress on stderr. Throws what the first
// failing replica threw.
void prefetch_routing(const routing::RoutingJob& job, int replicas, int jobs,
                      routing::RoutingCache& cache);

}  // namespace moesim::tool
