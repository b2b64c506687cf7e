#pragma once

#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/profile/estimate.hpp"

namespace moesim::profile {

// The cross-validated error of a curve, by region: how measured / predicted - 1 is distributed
// over points the fit had not seen.
class Residual {
 public:
  // Reads a curve's "residual" object: {"regions": [{"region", "from", "below", "n", "median_abs",
  // "p90_abs", "q05", "q95"}, ...], "median_abs", "p90_abs", ...}. `from` / `below` bound the
  // region in the unit of the curve's "by" variable ("time_us" or "bytes"); the regions are
  // ordered, adjoin, and the outermost hold beyond their bounds (from 0, below null).
  explicit Residual(const Node& node);

  struct Region {
    std::string label;
    double below = 0;  // the last region: infinity
    double median_abs = 0;
    double p90_abs = 0;
    double q05 = 0;
    double q95 = 0;
  };
  // The errors of a law that documents do not carry: at least one region, ascending, the last up to
  // infinity. `by` as above.
  Residual(std::string by, std::vector<Region> regions);

  // Sets time_us and its quantiles: `where` is the value of the variable that the regions divide,
  // `widen` >= 1 multiplies the width of the error bar (1 inside what was measured).
  void apply(double time_us, double where, double widen, Estimate& estimate) const;

  // Widens the bar of `estimate` by these errors, which are independent of those already in it: the
  // logs of both ends add in squares.
  void join(double where, Estimate& estimate) const;

  // "time_us" or "bytes": what `where` must hold.
  const std::string& by() const { return by_; }
  double median_abs() const { return median_abs_; }
  double p90_abs() const { return p90_abs_; }

  const std::vector<Region>& regions() const { return regions_; }

 private:
  std::string by_;
  double median_abs_ = 0;
  double p90_abs_ = 0;
  std::vector<Region> regions_;

  const Region& region_at(double where) const;
};

// Widening of an error bar `octaves` factors of two away from what was measured: half as wide
// again per octave. Assumed: no measurement says how fast a law loses hold.
double widening(double octaves);

// Reads an "origin" key.
Origin read_origin(const Node& node, const std::string& key);

}  // namespace moesim::profile
