#include "sim/network/flows/refill_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moesim::network {

#define MOESIM_SIMD_BODY "sim/network/flows/refill_kernels.inc"
#include "sim/base/simd_levels.inc"

const RefillKernels& refill_kernels(SimdLevel level) {
  return at_level(level, baseline::kernels, avx2::kernels, avx512::kernels);
}

}  // namespace moesim::network
