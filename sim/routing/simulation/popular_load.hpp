#pragma once

#include <vector>

#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// How uneven the popularity of experts makes the load of ranks in replicas `first` to
// `first + count - 1`: busiest_load() of a group, mean over layers. No token is drawn, so that it
// takes far less than routing a replica; what a step takes follows it where rows are not padded to
// a capacity. Empty without has_popular_loads().
std::vector<double> popular_loads(const RoutingJob& job, int first, int count);

// Whether popularity is drawn anew in each replica (not recorded, fixed, or fitted to a trace), for
// groups of several ranks.
bool has_popular_loads(const RoutingJob& job);

}  // namespace moesim::routing
