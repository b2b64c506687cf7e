#include "sim/routing/tokens/simd.hpp"

namespace moesim::routing {

SimdLevel best_simd_level() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return SimdLevel::avx512;
  if (avx2) return SimdLevel::avx2;
#endif
  return SimdLevel::baseline;
}

std::vector<SimdLevel> available_simd_levels() {
  std::vector<SimdLevel> levels = {SimdLevel::baseline};
  const SimdLevel best = best_simd_level();
  if (best >= SimdLevel::avx2) levels.push_back(SimdLevel::avx2);
  if (best >= SimdLevel::avx512) levels.push_back(SimdLevel::avx512);
  return levels;
}

std::string name_of(SimdLevel level) {
  switch (level) {
    case SimdLevel::baseline:
      return "baseline";
    case SimdLevel::avx2:
      return "avx2";
    case SimdLevel::avx512:
      return "avx512";
  }
  return "baseline";
}

}  // namespace moesim::routing
