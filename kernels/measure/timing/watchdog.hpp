#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

struct WatchdogOptions {
  std::string who;        // "rank 3 of 8 on node-2"
  double silence_s = 30;  // a phase that lasts longer is told, and again every so often
  double timeout_s = 0;   // the whole run may last so long; 0: no limit
  // One phase may last so long, unless it was begun as one that waits for others; 0: no limit. No
  // kernel worth timing runs for minutes.
  double stall_s = 0;
  // So long after a rank was lost the phase that was under way must have ended.
  double lost_s = 10;
  std::function<void(const std::string&)> tell;
  // Called once, from the watchdog's thread, with where it hangs: when the time is up (the code for
  // a timeout), or a rank is lost (failure). It ends the process: a rank that hangs in a collective
  // can be ended in no other way.
  std::function<void(const std::string&, ExitCode)> give_up;
  // Why the ranks can no longer come together, "" if they can; called from the watchdog's thread.
  std::function<std::string()> lost;
  // Ranks that this one waits for, if it knows; called from the watchdog's thread.
  std::function<std::vector<int>()> awaited;
};

// Says where a rank hangs: silent hangs are what users of communication benchmarks complain about
// most.
class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;  // its thread holds a pointer to it
  Watchdog& operator=(const Watchdog&) = delete;
  // What the rank does from now on: "all-to-all bytes=67108864: warm-up"; `waits` for as long as
  // others take.
  void phase(const std::string& name, bool waits = false);

 private:
  using Clock = std::chrono::steady_clock;
  struct Times {
    Clock::time_point start, phase, told, held;  // held: when it was last all together
  };
  void watch();
  bool hopeless(const Times& times, std::string& reason, ExitCode& code) const;
  std::string where(double seconds) const;

  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_ = "start";
  bool waits_ = true;
  std::uint64_t changes_ = 0;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace moesim::kernels::measure
