#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/base/simd.hpp"

namespace moesim::routing {

// Rows of small numbers, added up.
inline constexpr std::size_t row_alignment = 64;  // a row's length is a multiple of it

struct RowSumKernels {
  // sums[column] = sum of rows[pick][column] over `count` picks, columns [0, stride): rows of
  // `stride` bytes, none of them above 16.
  void (*sum_rows)(const std::uint8_t* rows, std::size_t stride, const std::uint16_t* picks,
                   std::size_t count, std::int32_t* sums);
};

const RowSumKernels& row_sum_kernels(SimdLevel level);

}  // namespace moesim::routing
