#pragma once

#include <string>

#include "sim/profile/device.hpp"
#include "sim/profile/estimate.hpp"

namespace moesim::profile {

// What a kernel at least does, whatever a curve says of shapes that it has not seen.
struct LeastWork {
  std::string dtype;
  double flops = 0;    // in the tensor cores
  double weights = 0;  // elements that are read once
};

// `estimate`, its low end too, no shorter than the device's datasheet allows: the FLOPs at the peak
// of their data type (FP8 twice, 4 bits up to six times that of bf16), the weights beyond the L2 at
// the peak bandwidth of its memory. The high end keeps its distance.
Estimate no_faster_than_machine(Estimate estimate, const LeastWork& work, const Device& device);

}  // namespace moesim::profile
