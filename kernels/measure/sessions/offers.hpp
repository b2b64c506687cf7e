#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure {

// Whether a device measures one kind of point of a suite.
struct Offer {
  std::string suite;  // "gemm-fp8"
  std::string kind;   // "gemm fp8_block": its operation, and its data type and pass if it has them
  std::string trouble;  // why it does not; "" if it does
};

// Makes the smallest point of each kind ready on the device, runs it once and verifies it: what the
// device really does, with the libraries that it finds. Suites for more GPUs than `gpus` are left
// out. A kind that fails keeps nothing from the next, unless the device is lost: then all that
// follow have its trouble. Does not throw what the device throws. `begins` is told each suite and
// kind before it runs.
std::vector<Offer> examine(Device& device, int gpus,
                           const std::function<void(const std::string&)>& begins = {});

}  // namespace moesim::kernels::measure
