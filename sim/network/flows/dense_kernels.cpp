#include "sim/network/flows/dense_kernels.hpp"

#include <bit>
#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moesim::network {
namespace {

template <typename Visit>
void for_each(std::uint64_t bits, Visit&& visit) {
  for (; bits != 0; bits &= bits - 1) visit(static_cast<std::size_t>(std::countr_zero(bits)));
}

void push(const std::uint64_t* set, double change, double eta_change, double* rho, double* eta,
          std::size_t words) {
  for (std::size_t word = 0; word < words; ++word) {
    for_each(set[word], [&](std::size_t bit) {
      rho[64 * word + bit] -= change;
      eta[64 * word + bit] -= eta_change;
    });
  }
}

void at_least(const std::uint64_t* set, const double* level, double limit, std::uint64_t* result,
              std::size_t words) {
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t bits = 0;
    for_each(set[word], [&](std::size_t bit) {
      bits |= static_cast<std::uint64_t>(level[64 * word + bit] >= limit) << bit;
    });
    result[word] = bits;
  }
}

DenseKernels::Least least(const double* values, std::size_t words) {
  DenseKernels::Least found{values[0], 0};
  for (std::size_t place = 1; place < 64 * words; ++place) {
    if (values[place] < found.value) found = {values[place], place};
  }
  return found;
}

std::size_t exceeding(const double* rho, const double* eta, const double* level,
                      const std::uint32_t* held, double time, double limit, double overfull,
                      std::size_t words, std::uint32_t* found) {
  std::size_t count = 0;
  for (std::size_t place = 0; place < 64 * words; ++place) {
    const double missed = std::abs(rho[place] * time - eta[place]);
    const bool exceeds =
        held[place] > 0 ? missed > limit * (held[place] * level[place]) : rho[place] < overfull;
    found[count] = static_cast<std::uint32_t>(place);
    count += exceeds ? 1 : 0;
  }
  return count;
}

constexpr DenseKernels portable = {push, at_least, least, exceeding};

#if defined(__x86_64__)
#define MOESIM_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw")))

MOESIM_AVX512 void push_avx512(const std::uint64_t* set, double change, double eta_change,
                               double* rho, double* eta, std::size_t words) {
  const __m512d changes = _mm512_set1_pd(change);
  const __m512d products = _mm512_set1_pd(eta_change);
  for (std::size_t word = 0; word < words; ++word) {
    const std::uint64_t bits = set[word];
    if (bits == 0) continue;
    for (std::size_t part = 0; part < 8; ++part) {
      const auto mask = static_cast<__mmask8>(bits >> (8 * part));
      double* const first = rho + 64 * word + 8 * part;
      double* const second = eta + 64 * word + 8 * part;
      const __m512d before = _mm512_loadu_pd(first);
      const __m512d times = _mm512_loadu_pd(second);
      _mm512_storeu_pd(first, _mm512_mask_sub_pd(before, mask, before, changes));
      _mm512_storeu_pd(second, _mm512_mask_sub_pd(times, mask, times, products));
    }
  }
}

MOESIM_AVX512 void at_least_avx512(const std::uint64_t* set, const double* level, double limit,
                                   std::uint64_t* result, std::size_t words) {
  const __m512d limits = _mm512_set1_pd(limit);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t bits = 0;
    for (std::size_t part = 0; part < 8; ++part) {
      const __mmask8 mask =
          _mm512_cmp_pd_mask(_mm512_loadu_pd(level + 64 * word + 8 * part), limits, _CMP_GE_OQ);
      bits |= static_cast<std::uint64_t>(mask) << (8 * part);
    }
    result[word] = bits & set[word];
  }
}

MOESIM_AVX512 DenseKernels::Least least_avx512(const double* values, std::size_t words) {
  __m512d least[4];
  for (std::size_t part = 0; part < 4; ++part) least[part] = _mm512_loadu_pd(values + 8 * part);
  for (std::size_t at = 32; at < 64 * words; at += 32) {
    for (std::size_t part = 0; part < 4; ++part) {
      least[part] = _mm512_min_pd(least[part], _mm512_loadu_pd(values + at + 8 * part));
    }
  }
  const double value = _mm512_reduce_min_pd(
      _mm512_min_pd(_mm512_min_pd(least[0], least[1]), _mm512_min_pd(least[2], least[3])));
  const __m512d wanted = _mm512_set1_pd(value);
  for (std::size_t at = 0; at < 64 * words; at += 8) {
    const __mmask8 mask = _mm512_cmp_pd_mask(_mm512_loadu_pd(values + at), wanted, _CMP_EQ_OQ);
    if (mask != 0) {
      return {value, at + static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(mask)))};
    }
  }
  return {value, 0};
}

MOESIM_AVX512 std::size_t exceeding_avx512(const double* rho, const double* eta,
                                           const double* level, const std::uint32_t* held,
                                           double time, double limit, double overfull,
                                           std::size_t words, std::uint32_t* found) {
  const __m512d times = _mm512_set1_pd(time);
  const __m512d limits = _mm512_set1_pd(limit);
  const __m512d least_left = _mm512_set1_pd(overfull);
  std::size_t count = 0;
  for (std::size_t at = 0; at < 64 * words; at += 8) {
    const __m256i counts = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(held + at));
    const __mmask8 holds = _mm256_test_epi32_mask(counts, counts);
    const __m512d residual = _mm512_loadu_pd(rho + at);
    const __m512d missed =
        _mm512_abs_pd(_mm512_sub_pd(_mm512_mul_pd(residual, times), _mm512_loadu_pd(eta + at)));
    const __m512d allowed = _mm512_mul_pd(
        limits, _mm512_mul_pd(_mm512_cvtepi32_pd(counts), _mm512_loadu_pd(level + at)));
    const __mmask8 full = _mm512_mask_cmp_pd_mask(holds, missed, allowed, _CMP_GT_OQ);
    const __mmask8 slack =
        _mm512_mask_cmp_pd_mask(static_cast<__mmask8>(~holds), residual, least_left, _CMP_LT_OQ);
    for_each(static_cast<std::uint64_t>(full | slack),
             [&](std::size_t bit) { found[count++] = static_cast<std::uint32_t>(at + bit); });
  }
  return count;
}

constexpr DenseKernels avx512 = {push_avx512, at_least_avx512, least_avx512, exceeding_avx512};
#endif

}  // namespace

const DenseKernels& portable_dense_kernels() { return portable; }

const DenseKernels& dense_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return avx512;
  }
#endif
  return portable;
}

}  // namespace moesim::network
