#pragma once

#include <vector>

#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// The distribution of popular_loads() over all seeds: 64 equally likely values, from the least up.
// A function of the scores, k and the numbers of experts, ranks and layers alone, which a process
// computes once (some 10 ms). It comes from a fixed stream, of which so much is drawn that another
// stream would move the mean and the deviation by a few percent of the deviation. Empty where
// popular_loads() is. Thread-safe.
std::vector<double> load_distribution(const RoutingJob& job);

}  // namespace moesim::routing
