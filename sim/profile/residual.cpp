#include "sim/profile/residual.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace moesim::profile {

namespace {

Residual::Region read_region(const Node& node) {
  Residual::Region region;
  region.label = node.text("region");
  region.below = node.number_or("below", std::numeric_limits<double>::infinity());
  region.median_abs = node.number("median_abs");
  region.p90_abs = node.number("p90_abs");
  region.q05 = node.number("q05");
  region.q95 = node.number("q95");
  if (region.q05 > region.q95) node.fail("expected q05 <= q95", "q05");
  if (region.q05 <= -1) node.fail("a measured time cannot be negative: expected q05 > -1", "q05");
  return region;
}

}  // namespace

Residual::Residual(const Node& node)
    : by_(node.text_or("by", "time_us")),
      median_abs_(node.number("median_abs")),
      p90_abs_(node.number("p90_abs")) {
  if (by_ != "time_us" && by_ != "bytes") node.fail("expected \"time_us\" or \"bytes\"", "by");
  double previous = 0;
  for (const Node& item : node.items("regions")) {
    regions_.push_back(read_region(item));
    if (!(regions_.back().below > previous)) item.fail("regions must ascend", "below");
    previous = regions_.back().below;
  }
  if (regions_.empty()) node.fail("expected at least one region", "regions");
}

Residual::Residual(std::string by, std::vector<Region> regions)
    : by_(std::move(by)), regions_(std::move(regions)) {
  for (const Region& region : regions_) {
    median_abs_ = std::max(median_abs_, region.median_abs);
    p90_abs_ = std::max(p90_abs_, region.p90_abs);
  }
}

const Residual::Region& Residual::region_at(double where) const {
  return *std::find_if(regions_.begin(), regions_.end() - 1,
                       [where](const Region& each) { return where < each.below; });
}

void Residual::apply(double time_us, double where, double widen, Estimate& estimate) const {
  const Region& region = region_at(where);
  estimate.time_us = time_us;
  // The point estimate lies inside its own bar even where the held-out errors are one-sided; a
  // widened lower quantile approaches 0 but never reaches it.
  const double low = std::min(region.q05, 0.0);
  const double high = std::max(region.q95, 0.0);
  estimate.time_us_p05 = time_us * std::pow(1 + low, widen);
  estimate.time_us_p95 = time_us * (1 + high * widen);
}

void Residual::join(double where, Estimate& estimate) const {
  const Region& region = region_at(where);
  const double low = std::log(estimate.time_us / estimate.time_us_p05);
  const double high = std::log(estimate.time_us_p95 / estimate.time_us);
  estimate.time_us_p05 =
      estimate.time_us * std::exp(-std::hypot(low, std::log1p(std::min(region.q05, 0.0))));
  estimate.time_us_p95 =
      estimate.time_us * std::exp(std::hypot(high, std::log1p(std::max(region.q95, 0.0))));
}

double widening(double octaves) { return 1 + 0.5 * std::max(octaves, 0.0); }

Origin read_origin(const Node& node, const std::string& key) {
  return value_in(origin_names, node.text(key),
                  fmt::format("{}: {}/{}", node.file(), node.path(), key));
}

}  // namespace moesim::profile
