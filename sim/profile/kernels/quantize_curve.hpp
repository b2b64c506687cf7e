#pragma once

#include <cstdint>

#include "sim/base/formats/document.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/kernels/log_grid.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::profile {

// What it costs more to cast activations A[m, k] to fewer bits with scales that have to be found
// than with known ones: the difference of two published casts, as a surface of log time over log m
// and log k. Both read and write A, so it is less than a pass over A takes.
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
