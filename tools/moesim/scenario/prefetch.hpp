#pragma once

#include <span>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/routing_cache.hpp"

namespace moesim::tool {

// routing::route_ahead(), with its progress on stderr.
void prefetch_routing(std::span<const routing::RoutingJob> jobs, int replicas, int threads,
                      routing::RoutingCache& cache);

}  // namespace moesim::tool
