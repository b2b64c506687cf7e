#pragma once

#include <cstdint>

#include "sim/base/formats/document.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/kernels/log_grid.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::profile {

// The time of casting activations A[m, k] to fewer bits: a memory-bound kernel whose share of the
// bandwidth depends on the length of a row, as a surface of log time over log m and log k.
class QuantizeCurve {
 public:
  // Reads a curve of model "size-surface"; errors name file and key.
  explicit QuantizeCurve(const Node& node);

  // Throws UsageError for sizes below 1. Beyond the largest sizes by the number of elements,
  // flagged as extrapolated.
  Estimate estimate(std::int64_t m, std::int64_t k) const;

 private:
  LogGrid surface_;
  double most_rows_;
  double longest_row_;
  Origin origin_;
  Residual residual_;
};

}  // namespace moesim::profile
