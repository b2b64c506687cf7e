#include "tools/moesim/prefetch.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace moesim::tool {

void prefetch_routing(const routing::RoutingJob& job, int replicas, int jobs,
                      routing::RoutingCache& cache) {
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (int replica = next++; replica < replicas; replica = next++) {
      try {
        cache.get(job, replica);
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
  if (failure) std::rethrow_exception(failure);
}

}  // namespace moesim::tool
