#pragma once

#include <cstdint>

namespace moesim::network {

// What the flows of one link add up to, in the notation of port_bounder.hpp. Times in picoseconds.
struct LinkLoad {
  std::int64_t bytes = 0;
  std::int64_t flows = 0;
  double largest = 0;  // bytes
  double first = 0;    // the earliest and the latest a flow enters
  double last = 0;
  double ends = 0;      // no earlier, as far as its bytes go
  double per_byte = 0;  // k_L
  double alone = 0;     // T_L
  double mean = 0;      // W_L / n_L
  double slowest = 0;   // the largest k of the links on its flows' ways, or more
  double left = 0;      // c_L - W_L / (k M), and
  double own = 0;       // 1 / (k M): a flow of b bytes takes at least b / (left + own b)
};

}  // namespace moesim::network
