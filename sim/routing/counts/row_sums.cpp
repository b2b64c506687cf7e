#include "sim/routing/counts/row_sums.hpp"

#include <algorithm>
#include <cstring>

namespace moesim::routing {

#define MOESIM_SIMD_BODY "sim/routing/counts/row_sums_kernels.inc"
#include "sim/base/simd_levels.inc"

const RowSumKernels& row_sum_kernels(SimdLevel level) {
  return at_level(level, baseline::kernels, avx2::kernels, avx512::kernels);
}

}  // namespace moesim::routing
