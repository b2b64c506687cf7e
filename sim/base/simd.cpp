#include "sim/base/simd.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "sim/base/error.hpp"

namespace moesim {
namespace {

SimdLevel level_of_cpu() {
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

SimdLevel chosen_level() {
  const SimdLevel most = level_of_cpu();
  const char* const text = std::getenv("MOESIM_SIMD");
  if (text == nullptr || *text == '\0') return most;
  const SimdLevel level = value_in(simd_level_names, text, "MOESIM_SIMD");
  if (level <= most) return level;
  throw UsageError(
      fmt::format("MOESIM_SIMD: this CPU has no {}: at most {}", name_of(level), name_of(most)));
}

}  // namespace

SimdLevel best_simd_level() {
  static const SimdLevel level = chosen_level();
  return level;
}

std::vector<SimdLevel> available_simd_levels() {
  std::vector<SimdLevel> levels;
  for (const auto& known : simd_level_names) {
    if (known.value <= level_of_cpu()) levels.push_back(known.value);
  }
  return levels;
}

}  // namespace moesim
