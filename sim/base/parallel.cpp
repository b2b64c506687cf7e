#include "sim/base/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace moesim {

int core_count() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // Nothing where the machine has more cores than the set.
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    return std::max(1, CPU_COUNT(&allowed));
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  // Guarded by mutex. Whatever the threads: those before one that failed have been taken, too.
  std::exception_ptr failure;
  std::size_t first_failed = count;
  const auto take = [&] {
    for (std::size_t index = next++; index < count; index = next++) {
      try {
        work(index);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (index >= first_failed) continue;
        first_failed = index;
        failure = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(1, threads)));
  others.reserve(wanted);
  try {
    for (std::size_t thread = 1; thread < wanted; ++thread) others.emplace_back(take);
  } catch (const std::system_error&) {
    // No more threads are to be had: those that there are do the work.
  }
  take();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace moesim
