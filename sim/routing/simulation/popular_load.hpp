#pragma once

#include <numbers>
#include <vector>

#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// How uneven the popularity of experts makes the load of ranks in replicas `first` to
// `first + count - 1`: the share of the busiest rank of a group times the number of ranks, mean
// over layers, if each token chose one expert by popularity alone. No token is drawn, so that it
// takes far less than routing a replica; what a step takes follows it where rows are not padded
// to a capacity. Exact for Gumbel noise; with normal noise it follows the
// load (correlation above 0.95) and lies below it. Empty without has_popular_loads().
std::vector<double> popular_loads(const RoutingJob& job, int first, int count);

// Whether popularity is drawn anew in each replica (not recorded, fixed, or fitted to a trace), for
// groups of several ranks.
bool has_popular_loads(const RoutingJob& job);

// By how much popular_loads() widens offsets of normal noise, which is narrower than Gumbel noise:
// the same bias says more.
inline constexpr double normal_noise_scale = std::numbers::pi / 2.449489742783178;  // root of 6

}  // namespace moesim::routing
