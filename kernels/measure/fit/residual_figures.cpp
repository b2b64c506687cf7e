#include "kernels/measure/fit/residual_figures.hpp"

#include <fmt/format.h>

#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/measure/timing/stopping.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

struct Region {
  double from;
  double below;  // infinity: unbounded
  std::vector<double> errors;
};

std::string unit_text(double value, const std::string& by) {
  if (by == "time_us") return fmt::format("{:g}us", value);
  for (const auto& [suffix, size] : {std::pair("GiB", 0x1p30), {"MiB", 0x1p20}, {"KiB", 0x1p10}}) {
    if (value >= size) return fmt::format("{:.3g}{}", value / size, suffix);
  }
  return fmt::format("{:g}B", value);
}

std::string label(const Region& region, const std::string& by) {
  const bool open_above = std::isinf(region.below);
  if (region.from == 0) return open_above ? "all" : "<" + unit_text(region.below, by);
  if (open_above) return ">" + unit_text(region.from, by);
  return unit_text(region.from, by) + "-" + unit_text(region.below, by);
}

ordered_json summary(const std::vector<double>& errors) {
  std::vector<double> absolute;
  for (const double error : errors) absolute.push_back(std::abs(error));
  return {{"n", errors.size()},
          {"median_abs", significant(median(absolute), 4)},
          {"p90_abs", significant(quantile(absolute, 0.9), 4)},
          {"q05", significant(quantile(errors, 0.05), 4)},
          {"q95", significant(quantile(errors, 0.95), 4)}};
}

// Regions of at least `fewest` points each; what is left over at the end joins the last one.
std::vector<Region> divide(const std::vector<HeldOut>& held_out, const std::vector<double>& bounds,
                           std::size_t fewest) {
  std::vector<Region> regions;
  Region open{0, 0, {}};
  for (std::size_t bound = 0; bound < bounds.size(); ++bound) {
    const double low = bound == 0 ? 0 : bounds[bound - 1];
    for (const HeldOut& each : held_out) {
      if (each.where >= low && each.where < bounds[bound]) {
        open.errors.push_back(each.measured_us / each.predicted_us - 1);
      }
    }
    open.below = bounds[bound];
    if (open.errors.size() < fewest) continue;
    regions.push_back(open);
    open = Region{bounds[bound], 0, {}};
  }
  if (regions.empty()) return {open};
  regions.back().below = bounds.back();
  regions.back().errors.insert(regions.back().errors.end(), open.errors.begin(), open.errors.end());
  return regions;
}

}  // namespace

double significant(double value, int digits) {
  return std::stod(fmt::format("{:.{}g}", value, digits));
}

ordered_json residual_figures(const std::vector<HeldOut>& held_out, const std::string& by,
                              const std::string& method, std::size_t fewest) {
  assert(!held_out.empty());
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> bounds = by == "bytes"
                                         ? std::vector<double>{0x1p16, 0x1p20, 0x1p24, infinity}
                                         : std::vector<double>{10, 100, 1000, infinity};
  std::vector<double> all;
  for (const HeldOut& each : held_out) all.push_back(each.measured_us / each.predicted_us - 1);
  const ordered_json total = summary(all);
  ordered_json regions = ordered_json::array();
  for (const Region& region : divide(held_out, bounds, fewest)) {
    ordered_json entry = {{"region", label(region, by)}, {"from", region.from}, {"below", nullptr}};
    if (!std::isinf(region.below)) entry["below"] = region.below;
    entry.update(summary(region.errors));
    regions.push_back(entry);
  }
  return {{"by", by},
          {"n", total["n"]},
          {"median_abs", total["median_abs"]},
          {"p90_abs", total["p90_abs"]},
          {"method", method},
          {"regions", regions}};
}

std::vector<std::size_t> folds(std::size_t points, std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> fold(points);
  const std::vector<std::size_t> order = shuffled_order(points, seed);
  for (std::size_t place = 0; place < points; ++place) fold[order[place]] = place % count;
  return fold;
}

}  // namespace moesim::kernels::measure
