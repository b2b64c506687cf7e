#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/study/validation/exchanges/exchange_errors.hpp"

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

// How many rows lie inside a 90 % band, and how wide it is.
struct Coverage {
  std::size_t points = 0;
  std::size_t inside = 0;
  std::vector<double> widths;  // (p95 - p05) / p50 of each row

  void add(const Coverage& other);
};

// How a band is made of errors (tools/fit/exchange_scatter.py has the same).
struct BandRule {
  double widen = 1.4;     // in the logs: quantiles of few are those of these few
  bool mirrored = false;  // as far up as down: few machines do not tell the sign of an error
};

// How many of `table` lie inside bands made of the errors of `every`, without those of rows from or
// to the row's own run: quantiles by region of sizes, as tools/fit/exchange_scatter.py makes the
// bars of published curves. A region of fewer than 10 others takes those of its side of 1 MiB; rows
// without as many are not counted.
Coverage coverage(const std::vector<HeldOutRow>& table, const std::vector<HeldOutRow>& every,
                  const BandRule& rule = {});

// "90 % band: 61 of 68 inside, 23 % wide", the median width. At least one point.
std::string coverage_text(const Coverage& coverage);

// A verdict where `judged` and there are at least 20 points: 85 to 95 % inside are wanted.
void report_coverage(const Coverage& coverage, const std::string& what, bool judged,
                     Validation& validation);

}  // namespace moesim::study
