#pragma once

#include <string>

#include "sim/base/formats/document.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/residual.hpp"
#include "sim/profile/size_curve.hpp"

namespace moesim::profile {

// Time of one family of memory-bound kernels against the bytes they read and write.
class MemoryCurve {
 public:
  // Reads a curve of op "memory"; errors name file and key.
  explicit MemoryCurve(const Node& node);

  const std::string& kernel() const { return kernel_; }
  const Residual& residual() const { return residual_; }
  // `bytes` > 0, finite. Below the smallest size the launch floor holds, beyond the largest the
  // bandwidth of the last piece: both flagged as extrapolated.
  Estimate estimate(double bytes) const;

 private:
  std::string kernel_;
  SizeCurve curve_;
  double smallest_;
  double largest_;
  Origin origin_;
  Residual residual_;
};

// Gathers of whole rows (permute, combine) at a share of the streaming bandwidth.
class RowMoveCurve {
 public:
  // Reads a curve of op "permute" or "combine".
  explicit RowMoveCurve(const Node& node);
  // `streaming` is the curve whose bandwidth the share refers to.
  Estimate estimate(double bytes, const MemoryCurve& streaming) const;

 private:
  double efficiency_;
  Origin origin_;
  Residual residual_;
};

}  // namespace moesim::profile
