#pragma once

#include <vector>

#include "sim/base/units.hpp"

namespace moesim::network {

// What is certain about a burst (all messages of a byte matrix at once, max-min shares) without
// simulating it. Times count from the origin of the start times.
struct PortBound {
  Picoseconds lower;   // the makespan is no less: the busiest link's bytes over its bandwidth
  Picoseconds upper;   // and no more
  bool exact = false;  // lower and upper meet, but for the rounding of picoseconds
  // For each rank, the later of its last byte sent and received; 0 for a rank without messages,
  // which the makespan does not count either.
  std::vector<Picoseconds> rank_lower, rank_upper;

  // How far `lower` can be off: upper / lower - 1; 0 for an exchange of nothing.
  double slack() const;
};

}  // namespace moesim::network
