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

void prefetch_routing(const routing::RoutingJob& job, int replicas, int jobs,
                      routing::RoutingCache& cache) {
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  ProgressLine line("replicas routed");
  study::SweepProgress progress;
  progress.total = static_cast<std::size_t>(replicas);
  const auto start = std::chrono::steady_clock::now();
  const auto show = [&] {
    const std::lock_guard lock(mutex);
    ++progress.done;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    progress.seconds_left = elapsed.count() / static_cast<double>(progress.done) *
                            static_cast<double>(progress.total - progress.done);
    line.show(progress);
  };
  const auto work = [&] {
    for (int replica = next++; replica < replicas; replica = next++) {
      try {
        cache.get(job, replica);
        show();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = replicas;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < std::min(jobs, replicas); ++thread) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  line.finish();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace moesim::tool
