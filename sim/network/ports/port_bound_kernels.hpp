#pragma once

#include <cstdint>

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
  // Adds a row to the sums by destination. `limit` is the end of the whole matrix.
  RowSum (*add_row)(const std::int64_t* row, int begin, int end, const std::int64_t* limit,
                    const ColumnSums& columns);
  // Bounds the flows of a row. Amounts below 2^52. They enter at `start` and the latency to
  // each destination.
  Reach (*bound_row)(const std::int64_t* row, int begin, int end, const std::int64_t* limit,
                     double start, const RowPort& source, const ColumnPorts& columns);
};
// Those for the best instruction set of this CPU; all give the same bits.
const BoundKernels& bound_kernels();
// The same for amounts of 2^52 and more, slower.
const BoundKernels& wide_bound_kernels();

}  // namespace moesim::network
