#pragma once

#include <string>

#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure::cuda {

// What the driver's management library (NVML) says of the GPU of this UUID ("GPU-..."), now. The
// library is loaded for it (MOESIM_NVML_LIBRARY names the file, if it is set), so that a program
// without it starts. Does not throw: what cannot be had stays empty, and `trouble` says why nothing
// could.
DeviceState device_state(const std::string& uuid);

}  // namespace moesim::kernels::measure::cuda
