#include "sim/routing/simulation/route_ahead.hpp"

#include <algorithm>
#include <mutex>

#include "sim/base/parallel.hpp"

namespace moesim::routing {
namespace {

// Watches the layers of a cache while in scope.
class LayerWatch {
 public:
  LayerWatch(RoutingCache& cache, std::function<void()> watcher) : cache_(cache) {
    cache_.on_layer(std::move(watcher));
  }
  ~LayerWatch() { cache_.on_layer(nullptr); }
  LayerWatch(const LayerWatch&) = delete;  // a second owner would end the watch early
  LayerWatch& operator=(const LayerWatch&) = delete;

 private:
  RoutingCache& cache_;
};

}  // namespace

RoutedUnit routed_unit(std::span<const RoutingJob> jobs) {
  return jobs.size() == 1 ? RoutedUnit::layer : RoutedUnit::replica;
}

void route_ahead(std::span<const RoutingJob> jobs, int replicas, int threads, RoutingCache& cache,
                 const RoutedWatcher& watcher) {
  if (jobs.empty() || replicas < 1) return;
  cache.announce(jobs, replicas);
  const bool by_layer = routed_unit(jobs) == RoutedUnit::layer;
  const std::size_t tasks = jobs.size() * static_cast<std::size_t>(replicas);
  const std::size_t total =
      by_layer ? tasks * static_cast<std::size_t>(jobs.front().layers) : tasks;
  std::mutex mutex;
  std::size_t done = 0;
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    ++done;
    if (watcher) watcher(done, total);
  };
  const LayerWatch watch(cache, by_layer ? count : std::function<void()>());
  // Replica by replica: routing the first job also routes the other jobs that share its logits.
  // Threads that find no replica left ask for the last ones too: they route layers of those that
  // are not finished.
  const std::size_t helpers = static_cast<std::size_t>(std::max(threads, 1)) - 1;
  try {
    parallel_for(tasks + helpers, threads, [&](std::size_t at) {
      const bool helps = at >= tasks;
      const std::size_t task = helps ? tasks - 1 - (at - tasks) % tasks : at;
      cache.get(jobs[task % jobs.size()], static_cast<int>(task / jobs.size()));
      if (!by_layer && !helps) count();
    });
  } catch (...) {
    cache.forget(jobs);
    throw;
  }
}

}  // namespace moesim::routing
