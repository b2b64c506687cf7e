#pragma once

#include <map>
#include <mutex>
#include <utility>

namespace moesim::kernels {

// A figure of each kernel on each device, found or set when it is first needed: launches that ask
// the runtime every time pay for it on the host, where a step's launches follow each other closely.
// May be used by several threads; a `make` that throws leaves nothing behind.
template <typename Value>
class PerKernel {
 public:
  // The figure, from `make()` the first time.
  template <typename Make>
  Value get(const void* kernel, int device, const Make& make) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find({kernel, device});
    if (found != values_.end()) return found->second;
    return values_.emplace(std::pair(kernel, device), make()).first->second;
  }
  // Calls `set(value)` if none as large was set before.
  template <typename Set>
  void raise(const void* kernel, int device, Value value, const Set& set) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find({kernel, device});
    if (found != values_.end() && found->second >= value) return;
    set(value);
    values_[{kernel, device}] = value;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<const void*, int>, Value> values_;  // guarded by mutex_
};

}  // namespace moesim::kernels
