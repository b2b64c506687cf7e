#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace moesim::kernels::measure {

struct WatchdogOptions {
  std::string who;        // "rank 3 of 8 on node-2"
  double silence_s = 30;  // a phase that lasts longer is told, and again every so often
  double timeout_s = 0;   // the whole run may last so long; 0: no limit
  std::function<void(const std::string&)> tell;
  // Called once, from the watchdog's thread, when the time is up; it ends the process: a rank that
  // hangs in a collective can be ended in no other way.
  std::function<void(const std::string&)> give_up;
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
  // What the rank does from now on: "all-to-all bytes=67108864: warm-up".
  void phase(const std::string& name);

 private:
  void watch();
  std::string where(double seconds) const;

  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_ = "start";
  std::uint64_t changes_ = 0;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace moesim::kernels::measure
