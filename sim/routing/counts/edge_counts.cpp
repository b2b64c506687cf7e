#include "sim/routing/counts/edge_counts.hpp"

#include <cstring>

#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

#define MOESIM_SIMD_BODY "sim/routing/counts/edge_counts_kernels.inc"
#include "sim/base/simd_levels.inc"

const EdgeCountKernels& edge_count_kernels(SimdLevel level) {
  return at_level(level, baseline::kernels, avx2::kernels, avx512::kernels);
}

}  // namespace moesim::routing
