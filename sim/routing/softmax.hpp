#pragma once

#include <cstdint>
#include <cstring>  // device code has memcpy of its own

// The one softmax of the project: the maximum subtracted, exp by the operations below, summed by
// folding halves. Host and device run the same IEEE operations in the same order, none of them
// contracted to an FMA, so that the keys that decide a route agree to the bit. Nothing but plain
// C++ in here, because device code includes it too; the vectorised host kernels (tile_kernels)
// repeat these operations lane by lane, and a test holds them to the same bits.

#if defined(__CUDACC__)
#define MOESIM_HOST_DEVICE __host__ __device__
#else
#define MOESIM_HOST_DEVICE
#endif

namespace moesim::routing {

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2: Cody and Waite's reduction in two
// steps (ln2_high has 15 bits, so n * ln2_high is exact), then the polynomial of degree 5 of
// least relative error (1.05e-7) whose first two coefficients are 1. In all 2e-7 of relative
// error for x in [-87, 0]; exp(0) is exactly 1.
struct ExpConstants {
  static constexpr float log2_e = 1.44269504F;
  static constexpr float magic = 12583039.0F;  // 1.5 * 2^23 + 127: the low bits hold n + 127
  static constexpr float ln2_high = 0.693145752F;
  static constexpr float ln2_low = 1.42860682e-6F;
  static constexpr float c2 = 0.499992311F;
  static constexpr float c3 = 0.166671157F;
  static constexpr float c4 = 0.0418903343F;
  static constexpr float c5 = 0.00831250194F;
  static constexpr float lowest = -87.0F;  // below it exp is 0: no subnormal is ever met
};

// One rounding each, on any target: device compilers contract a * b + c unless told otherwise.
MOESIM_HOST_DEVICE inline float multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

MOESIM_HOST_DEVICE inline float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

MOESIM_HOST_DEVICE inline float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// exp(x) for x <= 0; 0 below -87 and at -inf; NaN gives NaN.
MOESIM_HOST_DEVICE inline float exp_nonpositive(float x) {
  using K = ExpConstants;
  const float shifted = add(multiply(x, K::log2_e), K::magic);
  const float n = add(shifted, -K::magic);
  float r = add(x, -multiply(n, K::ln2_high));
  r = add(r, -multiply(n, K::ln2_low));
  float p = add(multiply(K::c5, r), K::c4);
  p = add(multiply(p, r), K::c3);
  p = add(multiply(p, r), K::c2);
  p = add(multiply(p, r), 1.0F);
  p = add(multiply(p, r), 1.0F);
  std::uint32_t bits = 0;
  memcpy(&bits, &shifted, sizeof bits);
  bits <<= 23;
  float scale = 0;
  memcpy(&scale, &bits, sizeof scale);
  return x < K::lowest ? 0.0F : multiply(p, scale);
}

// The sum of `count` values in the order of a folded tree: the list, padded with zeros to a power
// of two, is folded onto its first half until one value is left. A warp that holds value l in lane
// l % 32 gets there with shuffles, a vector unit with whole registers. Overwrites `values`.
MOESIM_HOST_DEVICE inline float folded_sum(float* values, int count) {
  int half = 1;
  while (2 * half < count) half *= 2;
  if (count < 2) return count == 1 ? values[0] : 0.0F;
  for (; half > 0; half /= 2) {
    for (int index = 0; index + half < count && index < half; ++index) {
      values[index] = add(values[index], values[index + half]);
    }
    count = count < half ? count : half;
  }
  return values[0];
}

// g = softmax(a) over one token's logits. `probabilities` holds `experts` values and may not alias
// `logits`; `scratch` holds `experts` values. Logits that are all -inf count as all equal. Returns
// false, leaving the results unspecified, when a logit is NaN or +inf.
MOESIM_HOST_DEVICE inline bool softmax(const float* logits, int experts, float* probabilities,
                                       float* scratch, float* log_sum_exp_parts = nullptr) {
  const float infinity = __builtin_huge_valf();
  float maximum = -infinity;
  for (int expert = 0; expert < experts; ++expert) {
    if (!(logits[expert] < infinity)) return false;
    if (logits[expert] > maximum) maximum = logits[expert];
  }
  for (int expert = 0; expert < experts; ++expert) {
    const float value =
        maximum == -infinity ? 1.0F : exp_nonpositive(add(logits[expert], -maximum));
    probabilities[expert] = value;
    scratch[expert] = value;
  }
  const float sum = folded_sum(scratch, experts);
  for (int expert = 0; expert < experts; ++expert) {
    probabilities[expert] = divide(probabilities[expert], sum);
  }
  if (log_sum_exp_parts != nullptr) {  // logsumexp(a) = parts[0] + log(parts[1])
    log_sum_exp_parts[0] = maximum;
    log_sum_exp_parts[1] = sum;
  }
  return true;
}

}  // namespace moesim::routing
