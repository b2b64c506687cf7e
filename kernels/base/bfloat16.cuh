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
