#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "sim/profile/estimate.hpp"

namespace moesim::profile {

// Estimates of products that were asked for before: a search asks for the same ones thousands of
// times. Thread-safe; keeps the first 65,536.
class KnownProducts {
 public:
  using Sizes = std::array<std::int64_t, 3>;

  Estimate get(const Sizes& sizes, const std::function<Estimate()>& estimate) {
    {
      const std::shared_lock lock(mutex_);
      const auto found = known_.find(sizes);
      if (found != known_.end()) return found->second;
    }
    const Estimate fresh = estimate();
    const std::unique_lock lock(mutex_);
    if (known_.size() < most) known_.emplace(sizes, fresh);
    return fresh;
  }

 private:
  static constexpr std::size_t most = 65'536;
  std::shared_mutex mutex_;
  std::map<Sizes, Estimate> known_;
};

}  // namespace moesim::profile
