#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "kernels/base/cuda_check.hpp"
#include "kernels/base/per_kernel.hpp"

// What a launch needs to know of its kernel on the current device, asked once per kernel and
// device. All throw CudaError.
namespace moesim::kernels {

inline int current_device() {
  int device = 0;
  MOESIM_CUDA(cudaGetDevice(&device));
  return device;
}

// Blocks of `threads` with `bytes` of dynamic shared memory, the same at every call for a kernel,
// that the device holds at once, at least one per processor.
inline int resident_blocks(const void* kernel, int threads, std::size_t bytes = 0) {
  static PerKernel<int> blocks;
  const int device = current_device();
  return blocks.get(kernel, device, [&] {
    int processors = 0, each = 0;
    MOESIM_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    if (bytes > 0) {  // as much of the cache as these blocks need, whatever the driver would guess
      MOESIM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared));
    }
    MOESIM_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, bytes));
    return processors * std::max(each, 1);
  });
}

// What a block can have of shared memory, static and dynamic together.
inline int block_shared_memory() {
  static PerKernel<int> room;
  const int device = current_device();
  return room.get(nullptr, device, [device] {
    int bytes = 0;
    MOESIM_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return bytes;
  });
}

// Lets the kernel be launched with `bytes` of dynamic shared memory; more than 48 KiB are refused
// without. Throws with cudaErrorNotSupported if the device has not so much for a block: 99 KiB
// where the compute capability is 8.6, 8.9 or 12.0, 163 and more on those that this project is
// built for.
inline void allow_shared_memory(const void* kernel, std::size_t bytes) {
  static PerKernel<std::size_t> allowed;
  const int device = current_device();
  allowed.raise(kernel, device, bytes, [kernel](std::size_t most) {
    const int room = block_shared_memory();
    if (most > static_cast<std::size_t>(room)) {
      throw CudaError("a kernel needs " + std::to_string(most) +
                          " bytes of shared memory for a block, and this GPU has " +
                          std::to_string(room),
                      cudaErrorNotSupported);
    }
    MOESIM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(most)));
  });
}

}  // namespace moesim::kernels
