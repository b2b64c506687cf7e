#pragma once

#include <cstdint>
#include <cstring>  // device code has its own memcpy

// The only softmax of the project: the maximum subtracted, exp by the operations below, summed by
// folding halves. Host and device run the same IEEE operations in the same order, none of them
// contracted to an FMA, so that the keys of a route have the same bits. Only plain C++ in this
// file, because device code includes it too; the vectorised host kernels (tile_kernels) repeat
// these operations lane by lane, and a test checks that the bits are the same.

#if defined(__CUDACC__)
#define MOESIM_HOST_DEVICE __host__ __device__
#else
#define MOESIM_HOST_DEVICE
#endif

namespace moesim::routing {

// exp(x) = 2^t, t = x log2(e) = n + r with n whole and |r| <= 1/2, 2^r by the polynomial of degree
// 5 of least relative error (9.2e-8) that is 1 at 0. Rounding t costs as much as rounding the
// logit would: the relative error is below 1.6e-7 (1 + |x|) where the result is not 0. exp(0) is
// exactly 1.
struct ExpConstants {
  static constexpr float log2_e = 1.44269504F;
  static constexpr float magic = 12583039.0F;  // 1.5 * 2^23 + 127: the low bits hold n + 127
  static constexpr float c1 = 0.693147004F;
  static constexpr float c2 = 0.240222409F;
  static constexpr float c3 = 0.0555073433F;
  static constexpr float c4 = 0.00967156608F;
  static constexpr float c5 = 0.00132646586F;
  static constexpr float lowest = -127.0F;  // of t: there the scale's bits are those of 0
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

// exp(x) for x <= 0; 0 where it would be subnormal (below -87.7) and at -inf; NaN gives NaN.
MOESIM_HOST_DEVICE inline float exp_nonpositive(float x) {
  using K = ExpConstants;
  const float exact_t = multiply(x, K::log2_e);
  const float t = exact_t < K::lowest ? K::lowest : exact_t;
  const float shifted = add(t, K::magic);
  const float r = add(t, -add(shifted, -K::magic));
  const float square = multiply(r, r);
  // Pairs of terms (Estrin), not Horner's chain: the same few operations, half as deep.
  const float low = add(multiply(r, K::c1), 1.0F);
  const float middle = add(multiply(r, K::c3), K::c2);
  const float high = add(multiply(r, K::c5), K::c4);
  const float p = add(multiply(add(multiply(high, square), middle), square), low);
  std::uint32_t bits = 0;
  memcpy(&bits, &shifted, sizeof bits);
  bits <<= 23;
  float scale = 0;
  memcpy(&scale, &bits, sizeof scale);
  return multiply(p, scale);
}

// 1 / (1 + exp(-a)); 0 at -inf.
MOESIM_HOST_DEVICE inline float sigmoid(float logit) {
  const float small = exp_nonpositive(logit < 0 ? logit : -logit);
  return divide(logit < 0 ? small : 1.0F, add(1.0F, small));
}

// The sum of `count` values in the order of a folded tree: the list, padded with zeros to a power
// of two, is folded onto its first half until one value is left. A warp with value l in lane l % 32
// does this with shuffles, a vector unit with whole registers. Overwrites `values`.
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
