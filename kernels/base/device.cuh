#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/routing/tokens/softmax.hpp"  // MOESIM_HOST_DEVICE, memcpy

// What a kernel is written against. nvcc maps it to CUDA; any other compiler to an interface that
// an executor of the tests implements (simt_thread.hpp), so that the very same kernel sources run,
// and are held to the CPU reference, on machines without a GPU. One-dimensional grids and blocks;
// all shared memory is dynamic; warp operations take whole warps.

#if defined(__CUDACC__)
#define MOESIM_KERNEL(threads) __global__ void __launch_bounds__(threads)
// One block to a processor is enough: without this, the compiler spills to make room for two.
#define MOESIM_LARGE_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)
// Two blocks shall share a processor.
#define MOESIM_PAIRED_KERNEL(threads) __global__ void __launch_bounds__(threads, 2)
#define MOESIM_DEVICE __device__ __forceinline__
#define MOESIM_PRAGMA(text) _Pragma(#text)
#define MOESIM_UNROLL(count) MOESIM_PRAGMA(unroll count)
#define MOESIM_UNROLL_ALL _Pragma("unroll")
#else
#define MOESIM_KERNEL(threads) inline void
#define MOESIM_LARGE_KERNEL(threads) inline void
#define MOESIM_PAIRED_KERNEL(threads) inline void
#define MOESIM_UNROLL(count)
#define MOESIM_UNROLL_ALL
#define MOESIM_DEVICE inline
#endif

namespace moesim::kernels {

inline constexpr int warp_lanes = 32;

// Sixteen bytes: the widest access of one thread.
struct alignas(16) Vector16 {
  std::uint32_t word[4];
};

}  // namespace moesim::kernels

#if defined(__CUDACC__)
#include "kernels/base/device_cuda.cuh"
#else
#include "kernels/base/device_simt.hpp"
#endif

namespace moesim::kernels {

MOESIM_DEVICE int lane_index() { return thread_index() % warp_lanes; }
MOESIM_DEVICE int warp_index() { return thread_index() / warp_lanes; }

// The lanes below this one.
MOESIM_DEVICE std::uint32_t lanes_below() { return (1U << lane_index()) - 1; }

MOESIM_DEVICE std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

MOESIM_DEVICE float float_of(std::uint32_t bits) {
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Unsigned integers that order as the floats do; every number, the infinities too, is above 0.
// The two zeros count as equal.
MOESIM_DEVICE std::uint32_t ordered_of(float value) {
  const std::uint32_t bits = bits_of(::moesim::routing::add(value, 0.0F));
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

MOESIM_DEVICE float unordered(std::uint32_t ordered) {
  return float_of((ordered & 0x80000000U) != 0 ? ordered & 0x7fffffffU : ~ordered);
}

}  // namespace moesim::kernels
