#pragma once

#include <cstddef>

#include "sim/study/search/memory_share.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// What is acceptable, and how many to print.
struct SearchLimits {
  std::size_t best = 5;
  double max_loss = 0;   // share of the tokens' weight
  double min_speed = 0;  // tokens/s/GPU
  double memory_share = study::usual_memory_share;
};
// Throws UsageError naming the flag.
SearchLimits requested_limits(const CommandLine& line);

}  // namespace moesim::tool
