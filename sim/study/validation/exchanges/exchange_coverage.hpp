#pragma once

#include <string>
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

// How a band is made of errors (tools/fit/exchange_scatter.py has the same).
struct BandRule {
  double widen = 1.4;     // in the logs: quantiles of few are those of these few
  bool mirrored = false;  // as far up as down: few machines do not tell the sign of an error
};

// `table` with bands made of the errors of `every`, without those of rows from or to the row's own
// run, which is its group: quantiles by region of sizes, as tools/fit/exchange_scatter.py makes the
// bars of published curves. A region of fewer than 10 others takes those of its side of 1 MiB; rows
// without as many are left out.
std::vector<BandPoint> banded(const std::vector<HeldOutRow>& table,
                              const std::vector<HeldOutRow>& every, const BandRule& rule = {});

}  // namespace moesim::study
