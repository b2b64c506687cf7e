#pragma once

#include "kernels/base/bfloat16.cuh"

// Sixteen bytes of elements in registers, as fp32.
namespace moesim::kernels {

template <typename Element>
inline constexpr int vector_elements = 16 / static_cast<int>(sizeof(Element));

template <typename Element>
MOESIM_DEVICE void unpack(const Vector16& vector, float (&values)[vector_elements<Element>]) {
  if constexpr (sizeof(Element) == 4) {
    for (int at = 0; at < 4; ++at) values[at] = float_of(vector.word[at]);
  } else {
    for (int at = 0; at < 4; ++at) {
      values[2 * at] = float_of(vector.word[at] << 16);
      values[2 * at + 1] = float_of(vector.word[at] & 0xffff0000U);
    }
  }
}

template <typename Element>
MOESIM_DEVICE Vector16 pack(const float (&values)[vector_elements<Element>]) {
  Vector16 vector{};
  if constexpr (sizeof(Element) == 4) {
    for (int at = 0; at < 4; ++at) vector.word[at] = bits_of(values[at]);
  } else {
    for (int at = 0; at < 4; ++at) {
      vector.word[at] = to_bfloat16_pair(values[2 * at], values[2 * at + 1]);
    }
  }
  return vector;
}

}  // namespace moesim::kernels
