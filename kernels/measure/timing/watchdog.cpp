#include "kernels/measure/timing/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace moesim::kernels::measure {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

void Watchdog::phase(const std::string& name, bool waits) {
  const std::lock_guard lock(mutex_);
  phase_ = name;
  waits_ = waits;
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

// Whether there is no point in going on, and why; `mutex_` is held.
bool Watchdog::hopeless(const Times& times, std::string& reason, ExitCode& code) const {
  code = ExitCode::timeout;
  if (options_.timeout_s > 0 && since(times.start) >= options_.timeout_s) {
    reason = "out of time";
    return true;
  }
  if (options_.stall_s > 0 && !waits_ && since(times.phase) >= options_.stall_s) {
    reason = "no end of it in sight";
    return true;
  }
  if (options_.lost && std::min(since(times.held), since(times.phase)) >= options_.lost_s) {
    reason = options_.lost();
    code = ExitCode::failure;
    return !reason.empty();
  }
  return false;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  const Clock::time_point start = Clock::now();
  Times times{start, start, start, start};
  std::uint64_t seen = changes_;
  while (!over_) {
    double pause = std::min(options_.silence_s / 4, 1.0);
    if (options_.timeout_s > 0) pause = std::min(pause, options_.timeout_s - since(times.start));
    changed_.wait_for(lock, std::chrono::duration<double>(std::max(pause, 0.001)));
    if (over_) return;
    if (changes_ != seen) {
      seen = changes_;
      times.phase = times.told = Clock::now();
    }
    if (options_.lost && options_.lost().empty()) times.held = Clock::now();
    std::string reason;
    ExitCode code = ExitCode::timeout;
    if (hopeless(times, reason, code)) {
      const std::string last = reason + ": " + where(since(times.phase));
      lock.unlock();
      if (options_.give_up) options_.give_up(last, code);
      return;
    }
    if (since(times.told) < options_.silence_s) continue;
    times.told = Clock::now();
    const std::string text = where(since(times.phase));
    lock.unlock();
    if (options_.tell) options_.tell(text);
    lock.lock();
  }
}

}  // namespace moesim::kernels::measure
