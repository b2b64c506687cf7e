#include "sim/routing/simulation/route_ahead.hpp"

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
  parallel_for(tasks, threads, [&](std::size_t task) {
    cache.get(jobs[task % jobs.size()], static_cast<int>(task / jobs.size()));
    if (!by_layer) count();
  });
}

}  // namespace moesim::routing
