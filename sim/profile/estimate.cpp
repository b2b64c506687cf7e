#include "sim/profile/estimate.hpp"

namespace moesim::profile {

std::string describe(const Estimate& estimate) {
  return std::string(name_of(estimate.origin)) + ", " + name_of(estimate.support);
}

}  // namespace moesim::profile
