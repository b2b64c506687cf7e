#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace moesim::kernels::measure {

// One held-out prediction.
struct HeldOut {
  double measured_us = 0;
  double predicted_us = 0;
  double where = 0;  // the value of the variable that divides the regions
};

// The `residual` object of a curve from held-out predictions, as tools/fit/common.py writes it:
// errors measured / predicted - 1 by region of `by` ("time_us" or "bytes"). A region with fewer
// than `fewest` points is merged into the next. `held_out` must not be empty.
nlohmann::ordered_json residual_figures(const std::vector<HeldOut>& held_out, const std::string& by,
                                        const std::string& method, std::size_t fewest = 8);

// The fold, 0..count-1, of each of `points` points: a seeded permutation dealt out in turn.
std::vector<std::size_t> folds(std::size_t points, std::size_t count, std::uint64_t seed);

// A figure as documents carry it, with this many significant digits.
double significant(double value, int digits);

}  // namespace moesim::kernels::measure
