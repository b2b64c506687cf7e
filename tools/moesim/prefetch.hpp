#pragma once

#include <span>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/routing_cache.hpp"

namespace moesim::tool {

// Routes the replicas of all `jobs` on `threads` threads into `cache`: one scenario is evaluated by
// one thread, and routing is most of its work. Shows its progress on stderr. Throws what the first
// failing replica threw.
void prefetch_routing(std::span<const routing::RoutingJob> jobs, int replicas, int threads,
                      routing::RoutingCache& cache);

}  // namespace moesim::tool
