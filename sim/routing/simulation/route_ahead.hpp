#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/routing_cache.hpp"

namespace moesim::routing {

// What route_ahead() counts: a job alone may take minutes per replica, so its layers are counted;
// of several jobs, which share layers, their replicas.
enum class RoutedUnit { layer, replica };
RoutedUnit routed_unit(std::span<const RoutingJob> jobs);

// Called by one thread at a time, after each unit.
using RoutedWatcher = std::function<void(std::size_t done, std::size_t total)>;

// Routes the replicas of all `jobs` on `threads` threads into `cache`: one scenario is evaluated by
// one thread, and routing is most of its work. Throws what the first failing replica threw.
void route_ahead(std::span<const RoutingJob> jobs, int replicas, int threads, RoutingCache& cache,
                 const RoutedWatcher& watcher = nullptr);

}  // namespace moesim::routing
