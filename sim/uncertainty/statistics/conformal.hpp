#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim::uncertainty {

// Fewer held-out groups than a band takes.
class TooFewGroups : public Error {
 public:
  explicit TooFewGroups(const std::string& message) : Error(message) {}
};

// Whether a band at `level` can be shown by so many held-out groups: it needs one beyond it, so
// that level <= groups / (groups + 1): 9 groups for 90 %, 4 for 80 %, 1 for 50 %.
bool level_allowed(std::size_t groups, double level);

// What predictions of one group said that were made without it: the prediction that they would
// make where the question is asked, and how far they were off in the group itself.
struct HeldOut {
  double centre = 0;
  std::vector<double> scores;  // |measured - predicted| of each point, in logs; not empty
};

struct Interval {
  double low = 0;
  double high = 0;
  bool contains(double value) const { return low <= value && value <= high; }
  double width() const { return high - low; }
  bool operator==(const Interval&) const = default;
};

// Jackknife+ over groups (Barber et al. 2021, arXiv:1905.02928; with groups Lee, Barber and Willett
// 2023, arXiv:2306.06342): the lower end is the quantile (1 - level) of centre - score, the upper
// one the quantile `level` of centre + score; each group has the same weight, which its points
// share, and one more group lies beyond everything. Proven to hold 2 level - 1 of the points of a
// new group that is exchangeable with these, and `level` where centres are stable. Below 50 % the
// two quantiles cross where centres differ by more than the scores: the band is then the point in
// the middle of them. Throws Error where the groups do not allow the level.
Interval jackknife_plus(const std::vector<HeldOut>& groups, double level);

}  // namespace moesim::uncertainty
