#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/study/validation/tables/band_points.hpp"

namespace moesim::study {

// A row of a table, predicted by something that had not seen its run.
struct HeldOutRow {
  double bytes = 0;
  double measured_us = 0;
  double predicted_us = 0;
  double over_chord = 1;  // of the predictor: SizeCurve::over_chord
  std::string source;     // the runs that it was predicted from
  std::string target;     // the run that it belongs to
};

// `table` with bands made of the errors of `every`, without those of rows from or to the row's own
// run, which is its group; one rule for all, that of tools/fit/exchange_scatter.py, which makes the
// bars of published curves. By region of sizes, a band reaches as far up as down, in logs: the 90 %
// quantile of |error|, each run of the same weight, times Student's t with as many degrees of
// freedom as runs over the normal quantile. What a switch at another size explains is no error, and
// widens the band where the row's own curve bends. A region of fewer than 10 others takes those of
// its side of 1 MiB; rows without as many are left out.
std::vector<BandPoint> banded(const std::vector<HeldOutRow>& table,
                              const std::vector<HeldOutRow>& every);

// How far such a band reaches up and down, in logs, at sizes below `below`.
struct SizeReach {
  double below = 0;  // the last one: infinity
  double reach = 0;
};

// The same bands by region of sizes, of rows from and to other runs than `left_out`; regions
// ascend, and those that no rows say anything of are absent.
std::vector<SizeReach> reach_by_size(const std::vector<HeldOutRow>& every,
                                     const std::string& left_out);

// The value that `share` of the weight lies below, half of a value's own counted; linear between,
// the outermost values beyond. `values`: (value, weight), not empty.
double weighted_quantile(std::vector<std::pair<double, double>> values, double share);

}  // namespace moesim::study
