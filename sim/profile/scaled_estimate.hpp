#pragma once

#include "sim/profile/estimate.hpp"

namespace moesim::profile {

// The same kernel, `factor` times as long, with a band as wide in relation.
inline Estimate scaled(Estimate estimate, double factor) {
  estimate.time_us *= factor;
  estimate.time_us_p05 *= factor;
  estimate.time_us_p95 *= factor;
  return estimate;
}

}  // namespace moesim::profile
