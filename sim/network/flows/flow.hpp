#pragma once

#include <cstdint>

#include "sim/base/units.hpp"

namespace moesim::network {

// One transfer between two ranks. It enters its links one route latency after `start` and ends when
// its last byte has passed; 0 bytes end at start, and so does what a rank sends to itself.
struct Flow {
  int source = 0;
  int destination = 0;
  std::int64_t bytes = 0;
  Picoseconds start;
};

}  // namespace moesim::network
