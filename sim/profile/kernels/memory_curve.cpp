#include "sim/profile/kernels/memory_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"

namespace moesim::profile {

MemoryCurve::MemoryCurve(const Node& node)
    : kernel_(node.at("params").text("kernel")),
      curve_(node),
      smallest_(node.at("valid").numbers("bytes").front()),
      largest_(node.at("valid").numbers("bytes").back()),
      origin_(read_origin(node, "origin")),
      residual_(node.at("residual")) {}

Estimate MemoryCurve::estimate(double bytes) const {
  if (!(bytes > 0) || !std::isfinite(bytes)) {
    throw UsageError(fmt::format("memory: {} bytes: expected a positive size", bytes));
  }
  const double octaves = std::max({std::log2(smallest_ / bytes), std::log2(bytes / largest_), 0.0});
  const double time_us = curve_.time_us(bytes);
  Estimate estimate;
  residual_.apply(time_us, time_us, widening(octaves), estimate);
  estimate.origin = origin_;
  estimate.support = octaves > 0 ? Support::extrapolated : Support::interpolated;
  return estimate;
}

RowMoveCurve::RowMoveCurve(const Node& node)
    : efficiency_(node.positive("efficiency")),
      origin_(read_origin(node, "origin")),
      residual_(node.at("residual")) {
  if (efficiency_ > 1)
    node.fail("expected a share of the streaming bandwidth, at most 1", "efficiency");
}

Estimate RowMoveCurve::estimate(double bytes, const MemoryCurve& streaming) const {
  Estimate estimate = streaming.estimate(bytes);
  // A gather that moves at a share of the bandwidth takes the time of proportionally more bytes;
  // the launch floor stays what it is.
  const double time_us = streaming.estimate(bytes / efficiency_).time_us;
  residual_.apply(time_us, time_us, 1, estimate);
  estimate.origin = origin_;
  return estimate;
}

}  // namespace moesim::profile
