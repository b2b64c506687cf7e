#include "sim/routing/tokens/tile_kernels.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "sim/routing/tokens/softmax.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moesim::routing {

#define MOESIM_SIMD_BODY "sim/routing/tokens/tile_kernels.inc"
#include "sim/base/simd_levels.inc"

const TileKernels& tile_kernels(SimdLevel level) {
  return at_level(level, baseline::kernels, avx2::kernels, avx512::kernels);
}

}  // namespace moesim::routing
