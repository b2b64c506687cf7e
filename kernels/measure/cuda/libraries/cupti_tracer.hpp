#pragma once

#include <memory>
#include <string>

#include "kernels/measure/timing/activity.hpp"

namespace moesim::kernels::measure::cuda {

// Records what runs on the devices of this process, by CUPTI's activity interface, loaded at run
// time. Tracing slows launches: it is a pass of its own, never on while times are taken.
class CuptiTracer {
 public:
  // Why there is no CUPTI for this build (no library, another major version than its headers); ""
  // if there is one. It is loaded, and nothing else: from get() on it makes every launch dearer.
  static std::string missing();
  static std::string version();  // "130001", "" if it is missing
  // The one of this process (CUPTI has one subscriber per process), attached by the first call.
  // Null where it cannot be used: missing, refused, or another tool attached; `trouble` then says
  // why.
  static CuptiTracer* get(std::string& trouble);
  CuptiTracer(const CuptiTracer&) = delete;  // one per process
  CuptiTracer& operator=(const CuptiTracer&) = delete;

  // Calls of this thread between begin_range and end_range belong to the range. Throw Error with
  // CUPTI's words.
  void start();
  void begin_range(std::uint64_t range);
  void end_range();
  Trace stop();  // the devices must be idle

 private:
  CuptiTracer() = default;
  ~CuptiTracer() = default;
};

}  // namespace moesim::kernels::measure::cuda
