#pragma once

#include "kernels/base/device.cuh"

namespace moesim::kernels {

// The upper half of a float; plain bits, the same on host and device.
struct Bfloat16 {
  std::uint16_t bits = 0;
};

MOESIM_HOST_DEVICE inline float to_float(float value) { return value; }

MOESIM_HOST_DEVICE inline float to_float(Bfloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float wide = 0;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Rounds to nearest, ties to even; a NaN stays one.
MOESIM_HOST_DEVICE inline Bfloat16 to_bfloat16(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {0x7fff};
  bits += 0x7fffU + (bits >> 16 & 1U);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

// to_bfloat16() of both, `low` in the lower half: one instruction of the GPU, whose NaN is the
// same.
MOESIM_DEVICE std::uint32_t to_bfloat16_pair(float low, float high) {
#if defined(__CUDACC__)
  std::uint32_t pair = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_bfloat16(low).bits | static_cast<std::uint32_t>(to_bfloat16(high).bits) << 16;
#endif
}

template <typename Element>
MOESIM_HOST_DEVICE inline Element from_float(float value);
template <>
MOESIM_HOST_DEVICE inline float from_float<float>(float value) {
  return value;
}
template <>
MOESIM_HOST_DEVICE inline Bfloat16 from_float<Bfloat16>(float value) {
  return to_bfloat16(value);
}

}  // namespace moesim::kernels
