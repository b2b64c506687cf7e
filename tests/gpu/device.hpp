#pragma once

#include <string>

#include "kernels/base/cuda_check.hpp"
#include "tests/support/catch.hpp"

namespace moesim::kernels {

// Why GPU tests cannot run here; empty if they can.
inline std::string no_device() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess) {
    return std::string("no usable GPU: ") + cudaGetErrorName(code) + ", " +
           cudaGetErrorString(code);
  }
  return devices == 0 ? "no GPU" : "";
}

inline int gpus_here() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

}  // namespace moesim::kernels

#define MOESIM_NEEDS_GPU()                                     \
  do {                                                         \
    const std::string reason = ::moesim::kernels::no_device(); \
    if (!reason.empty()) MOESIM_SKIP(reason);                  \
  } while (false)
