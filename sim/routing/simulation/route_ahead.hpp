#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/routing_cache.hpp"

namespace moesim::routing {

// The unit of progress of route_ahead(): layers for a single job, which may take minutes per
// replica; replicas for several jobs, which share layers.
enum class RoutedUnit { layer, replica };
RoutedUnit routed_unit(std::span<const RoutingJob> jobs);

// Called by one thread at a time, after each unit.
using RoutedWatcher = std::function<void(std::size_t done, std::size_t total)>;

// Routes the replicas of all `jobs` on `threads` threads into `cache`: a scenario is evaluated by a
// single thread, and most of its work is routing. Throws the exception of the first failing
// replica; the cache then forgets the jobs.
void route_ahead(std::span<const RoutingJob> jobs, int replicas, int threads, RoutingCache& cache,
                 const RoutedWatcher& watcher = nullptr);

}  // namespace moesim::routing
