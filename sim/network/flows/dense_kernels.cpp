#include "sim/network/flows/dense_kernels.hpp"

#include <bit>
#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moesim::network {

#define MOESIM_SIMD_BODY "sim/network/flows/dense_kernels.inc"
#include "sim/base/simd_levels.inc"

const DenseKernels& dense_kernels(SimdLevel level) {
  return at_level(level, baseline::kernels, avx2::kernels, avx512::kernels);
}

}  // namespace moesim::network
