#include "tools/moesim/prefetch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tools/moesim/progress.hpp"

namespace moesim::tool {

void prefetch_routing(std::span<const routing::RoutingJob> jobs, int replicas, int threads,
                      routing::RoutingCache& cache) {
  cache.announce(jobs, replicas);
  // Replica by replica: the first job of each routes the others that share its logits with it.
  const int total = replicas * static_cast<int>(jobs.size());
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  // A job alone may take minutes a replica; jobs together share layers, as many as memory allows.
  const bool by_layer = jobs.size() == 1;
  ProgressLine line(by_layer ? "layers routed" : "replicas routed");
  study::SweepProgress progress;
  progress.total = static_cast<std::size_t>(total);
  if (by_layer) progress.total *= static_cast<std::size_t>(jobs.front().layers);
  const auto start = std::chrono::steady_clock::now();
  const auto show = [&] {
    const std::lock_guard lock(mutex);
    ++progress.done;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    progress.seconds_left = elapsed.count() / static_cast<double>(progress.done) *
                            static_cast<double>(progress.total - progress.done);
    line.show(progress);
  };
  if (by_layer) cache.on_layer(show);
  const auto work = [&] {
    for (int index = next++; index < total; index = next++) {
      try {
        const auto job = static_cast<std::size_t>(index) % jobs.size();
        cache.get(jobs[job], index / static_cast<int>(jobs.size()));
        if (!by_layer) show();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = total;
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int thread = 1; thread < std::min(threads, total); ++thread) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  cache.on_layer(nullptr);
  line.finish();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace moesim::tool
