#pragma once

#include <cmath>

namespace moesim::kernels::measure {

// |got - wanted| within two units in the last place of bf16 and `slack`; NaN never is.
inline bool close(double got, double wanted, double slack) {
  return std::abs(got - wanted) <= std::abs(wanted) * 0x1p-7 + slack;
}

}  // namespace moesim::kernels::measure
