#include "sim/routing/tokens/tile_kernels.hpp"

#include <cstring>
#include <limits>

#include "sim/routing/tokens/softmax.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moesim::routing {

// The same source compiled for each instruction set and chosen at run time (best_simd_level).
namespace baseline {
#define MOESIM_SIMD_BYTES 16
#include "sim/routing/tokens/tile_kernels_body.inc"
#undef MOESIM_SIMD_BYTES
}  // namespace baseline

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2")
#endif
namespace avx2 {
#define MOESIM_SIMD_BYTES 32
#include "sim/routing/tokens/tile_kernels_body.inc"
#undef MOESIM_SIMD_BYTES
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(                                                             \
    __attribute__((target("avx2,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#endif
namespace avx512 {
#define MOESIM_SIMD_BYTES 64
#include "sim/routing/tokens/tile_kernels_body.inc"
#undef MOESIM_SIMD_BYTES
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const TileKernels& tile_kernels(SimdLevel level) {
  switch (level) {
    case SimdLevel::baseline:
      return baseline::kernels;
    case SimdLevel::avx2:
      return avx2::kernels;
    case SimdLevel::avx512:
      return avx512::kernels;
  }
  return baseline::kernels;
}

#else

const TileKernels& tile_kernels(SimdLevel /*level*/) { return baseline::kernels; }

#endif

}  // namespace moesim::routing
