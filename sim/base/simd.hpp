#pragma once

#include <vector>

#include "sim/base/enum_names.hpp"

namespace moesim {

// The instruction sets that inner loops are compiled for; all give the same bits.
//
// Such loops are written once, in a file NAME_kernels.inc on registers of MOESIM_SIMD_BYTES, which
// ends with a constant `kernels` of pointers to them. NAME_kernels.cpp compiles that file for every
// level (simd_levels.inc) and returns those of a level with at_level().
enum class SimdLevel { baseline, avx2, avx512 };
inline constexpr EnumNames<SimdLevel, 3> simd_level_names{{
    {SimdLevel::baseline, "baseline"},
    {SimdLevel::avx2, "avx2"},
    {SimdLevel::avx512, "avx512"},
}};
constexpr const char* name_of(SimdLevel level) { return name_in(simd_level_names, level); }

// The best level that this CPU and this build have, or the lower one that the environment variable
// MOESIM_SIMD names, found at the first call. Throws UsageError for a value that is no level, or a
// level that cannot run here.
SimdLevel best_simd_level();
// For tests: all levels that can run here, the baseline first, whatever MOESIM_SIMD says.
std::vector<SimdLevel> available_simd_levels();

template <class Kernels>
const Kernels& at_level(SimdLevel level, const Kernels& baseline, const Kernels& avx2,
                        const Kernels& avx512) {
  return level == SimdLevel::avx512 ? avx512 : level == SimdLevel::avx2 ? avx2 : baseline;
}

}  // namespace moesim
