#include "sim/network/ports/port_bound_kernels.hpp"

#include <algorithm>
#include <cstring>

namespace moesim::network {

#define MOESIM_SIMD_BODY "sim/network/ports/port_bound_kernels.inc"
#define MOESIM_SIMD_UP_TO_AVX2
#include "sim/base/simd_levels.inc"

const BoundKernels& bound_kernels(SimdLevel level) {
  return at_level(level, baseline::kernels, avx2::kernels, avx512::kernels);
}

}  // namespace moesim::network
