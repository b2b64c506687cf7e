#include "kernels/measure/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace moesim::kernels::measure {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Watchdog::Watchdog(WatchdogOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::phase(const std::string& name) {
  const std::lock_guard lock(mutex_);
  phase_ = name;
  ++changes_;
  // Not notified: phases of fast kernels change thousands of times a second, and the watch looks
  // at them when its own time comes.
}

std::string Watchdog::where(double seconds) const {
  std::string text = fmt::format("{}: {:.0f} s in '{}'", options_.who, seconds, phase_);
  const std::vector<int> awaited = options_.awaited ? options_.awaited() : std::vector<int>{};
  if (!awaited.empty()) {
    text += fmt::format(", waiting for rank{} {}", awaited.size() == 1 ? "" : "s",
                        fmt::join(awaited, ", "));
  }
  return text;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  const Clock::time_point start = Clock::now();
  Clock::time_point phase_start = start, told = start;
  std::uint64_t seen = changes_;
  while (!over_) {
    const double left = options_.timeout_s > 0 ? options_.timeout_s - since(start)
                                               : std::numeric_limits<double>::infinity();
    const double pause = std::min({left, options_.silence_s / 4, 1.0});
    changed_.wait_for(lock, std::chrono::duration<double>(std::max(pause, 0.001)));
    if (over_) return;
    if (changes_ != seen) {
      seen = changes_;
      phase_start = told = Clock::now();
    }
    if (options_.timeout_s > 0 && since(start) >= options_.timeout_s) {
      const std::string last = where(since(phase_start));
      lock.unlock();
      if (options_.give_up) options_.give_up(last);
      return;
    }
    if (since(told) < options_.silence_s) continue;
    told = Clock::now();
    const std::string text = where(since(phase_start));
    lock.unlock();
    if (options_.tell) options_.tell(text);
    lock.lock();
  }
}

}  // namespace moesim::kernels::measure
