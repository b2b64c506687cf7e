#include "sim/profile/kernels/quantize_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"

namespace moesim::profile {

QuantizeCurve::QuantizeCurve(const Node& node)
    : surface_(node.at("surface")),
      most_rows_(std::exp2(node.at("surface").numbers("x_knots").back())),
      longest_row_(std::exp2(node.at("surface").numbers("y_knots").back())),
      origin_(read_origin(node, "origin")),
      residual_(node.at("residual")) {}

Estimate QuantizeCurve::estimate(std::int64_t m, std::int64_t k) const {
  if (m < 1 || k < 1) {
    throw UsageError(fmt::format("quantize {} x {}: expected sizes of at least 1", m, k));
  }
  const auto rows = static_cast<double>(m), length = static_cast<double>(k);
  const double beyond = std::max(rows / most_rows_, 1.0) * std::max(length / longest_row_, 1.0);
  const double time_us = std::exp(surface_.at(std::log2(rows), std::log2(length))) * beyond;
  Estimate estimate;
  residual_.apply(time_us, time_us, widening(std::log2(beyond)), estimate);
  estimate.origin = origin_;
  estimate.support = beyond > 1 ? Support::extrapolated : Support::interpolated;
  return estimate;
}

}  // namespace moesim::profile
