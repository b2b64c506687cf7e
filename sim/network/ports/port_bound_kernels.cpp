#include "sim/network/ports/port_bound_kernels.hpp"

#include <algorithm>
#include <cstring>

#define MOESIM_INLINE [[gnu::always_inline]] inline

namespace moesim::network {

// The same source compiled for each instruction set and chosen at run time.
namespace baseline {
#define MOESIM_SIMD_BYTES 16
#define MOESIM_RAMP -1, -1, 0, 0
#include "sim/network/ports/port_bound_kernels.inc"
#undef MOESIM_RAMP
#undef MOESIM_SIMD_BYTES
}  // namespace baseline

// Slower, for any amounts.
namespace wide {
#define MOESIM_ANY_AMOUNT
#define MOESIM_SIMD_BYTES 16
#define MOESIM_RAMP -1, -1, 0, 0
#include "sim/network/ports/port_bound_kernels.inc"
#undef MOESIM_RAMP
#undef MOESIM_SIMD_BYTES
#undef MOESIM_ANY_AMOUNT
}  // namespace wide

const BoundKernels& wide_bound_kernels() {
  static constexpr BoundKernels kernels{wide::add_row, wide::bound_row};
  return kernels;
}

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
namespace avx2 {
#define MOESIM_SIMD_BYTES 32
#define MOESIM_RAMP -1, -1, -1, -1, 0, 0, 0, 0
#include "sim/network/ports/port_bound_kernels.inc"
#undef MOESIM_RAMP
#undef MOESIM_SIMD_BYTES
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const BoundKernels& bound_kernels() {
  static constexpr BoundKernels of_baseline{baseline::add_row, baseline::bound_row};
  static constexpr BoundKernels of_avx2{avx2::add_row, avx2::bound_row};
  return __builtin_cpu_supports("avx2") ? of_avx2 : of_baseline;
}

#else

const BoundKernels& bound_kernels() {
  static constexpr BoundKernels of_baseline{baseline::add_row, baseline::bound_row};
  return of_baseline;
}

#endif

}  // namespace moesim::network
