#pragma once

#include <cstdint>

#include "sim/base/simd.hpp"

namespace moesim::network {

// The inner loops of PortBounder, on vectors. Arrays by destination are as long as the ranks,
// rounded up to whole vectors, at most `padding` more; rows of the matrix need not be.
inline constexpr int padding = 4;

// What the messages of one row to [begin, end) add up to.
struct RowSum {
  std::int64_t bytes = 0;
  std::int64_t flows = 0;
  std::int64_t bits = 0;  // set in any of the amounts
  double largest = 0;
};

struct ColumnSums {
  std::int64_t* bytes;
  std::int64_t* flows;
  double* largest;
};

// The port of the source, and those of the destinations; port_bounder.hpp names the figures.
struct RowPort {
  double share, alone, mean, left, own;
};
struct ColumnPorts {
  const double* latency;
  const double* share;
  const double* alone;
  const double* mean;
  const double* left;
  const double* own;
  double* upper;  // the latest end so far, and
  double* lower;  // its lower bound: both are raised
};
struct Reach {
  double upper = 0;
  double lower = 0;
};

struct BoundKernels {
  using AddRow = RowSum (*)(const std::int64_t* row, int begin, int end, const std::int64_t* limit,
                            const ColumnSums& columns);
  using BoundRow = Reach (*)(const std::int64_t* row, int begin, int end, const std::int64_t* limit,
                             double start, const RowPort& source, const ColumnPorts& columns);
  // Adds a row to the sums by destination. `limit` is the end of the whole matrix.
  AddRow add_row;
  // Bounds the flows of a row. Amounts below 2^52. They enter at `start` and the latency to
  // each destination.
  BoundRow bound_row;
  // The same for amounts of 2^52 and more, slower.
  AddRow add_any_row;
  BoundRow bound_any_row;
};
// One implementation per instruction set; all give the same bits.
const BoundKernels& bound_kernels(SimdLevel level = best_simd_level());

}  // namespace moesim::network
