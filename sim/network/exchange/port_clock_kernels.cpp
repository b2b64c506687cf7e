#include "sim/network/exchange/port_clock_kernels.hpp"

#include <bit>
#include <limits>

namespace moesim::network {

#define MOESIM_SIMD_BODY "sim/network/exchange/port_clock_kernels.inc"
#define MOESIM_SIMD_UP_TO_AVX2
#include "sim/base/simd_levels.inc"

const ClockKernels& clock_kernels(SimdLevel level) {
  return at_level(level, baseline::kernels, avx2::kernels, avx512::kernels);
}

}  // namespace moesim::network
