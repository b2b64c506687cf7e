#pragma once

#include <string>

#include "sim/profile/device.hpp"
#include "sim/profile/estimate.hpp"

namespace moesim::profile {

// What a kernel at least does, whatever a curve says of shapes that it has not seen.
struct LeastWork {
  double flops = 0;      // in the tensor cores
  double weights = 0;    // elements that are read once
  std::string products;  // data type of the FLOPs
  std::string stored;    // data type of the weights
};

// `estimate`, its ends too, no shorter than the device's datasheet allows: the FLOPs at the peak of
// their data type (FP8 twice, 4 bits up to six times that of bf16), the weights beyond the L2 at
// the peak bandwidth of its memory.
Estimate no_faster_than_machine(Estimate estimate, const LeastWork& work, const Device& device);

}  // namespace moesim::profile
