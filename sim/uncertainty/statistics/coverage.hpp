#pragma once

#include <cstddef>
#include <vector>

#include "sim/uncertainty/statistics/conformal.hpp"

namespace moesim::uncertainty {

// A measurement beside the band that was predicted for it without it; logs.
struct Judged {
  double value = 0;
  Interval band;
};

// How well bands of one level did.
struct Coverage {
  std::size_t points = 0;
  double inside = 0;          // share of the points, 0 to 1
  double width = 0;           // mean over the points, of logs
  double interval_score = 0;  // mean; less is better
};

// The interval score at `level` (Gneiting and Raftery 2007, doi:10.1198/016214506000001437): the
// width, and 2 / (1 - level) times what a value outside lies beyond the nearer end. `judged` must
// not be empty.
Coverage coverage_of(const std::vector<Judged>& judged, double level);

// The least mean interval score at `level` of one band of constant width around 0 for all of the
// values, and its width: what bands that know where they are uncertain have to beat. It is chosen
// on the values themselves, which favours it.
Coverage constant_band(const std::vector<double>& values, double level);

}  // namespace moesim::uncertainty
