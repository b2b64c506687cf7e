#include "sim/study/validation/tables/band_points.hpp"

#include <cmath>
#include <string>

#include "sim/base/statistics.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;

namespace {

// `groups` groups of `size` points, of which the first `inside` in all lie in their bands.
std::vector<BandPoint> points(std::size_t groups, std::size_t size, std::size_t inside) {
  std::vector<BandPoint> found;
  for (std::size_t point = 0; point < groups * size; ++point) {
    found.push_back(
        {"group " + std::to_string(point / size), point < inside ? 0.05 : 0.2, {-0.1, 0.1}});
  }
  return found;
}

std::optional<bool> verdict(const std::vector<BandPoint>& held, bool judged = true) {
  Validation validation;
  report_bands("study", "what", held, judged, validation);
  return validation.verdicts.front().met;
}

}  // namespace

TEST_CASE("bands of 20 points of 9 groups have to hold 85 to 95 %") {
  CHECK(verdict(points(10, 10, 85)) == true);
  CHECK(verdict(points(10, 10, 95)) == true);
  CHECK(verdict(points(10, 10, 84)) == false);
  CHECK(verdict(points(10, 10, 96)) == false);
  CHECK(!verdict(points(10, 10, 96), false));
  CHECK(!verdict(points(9, 2, 18)));  // 18 points
}

TEST_CASE("bands of few groups are unmet where chance does not explain their misses") {
  // One group outside happens one time in ten; two of two one time in a hundred; of five groups
  // 0.9^5 + 5 x 0.1 x 0.9^4 = 92 % of times at most one is outside, 99 % at most two.
  CHECK(least_share_by_chance(1) == Approx(0));
  CHECK(least_share_by_chance(2) == Approx(0.5));
  CHECK(least_share_by_chance(5) == Approx(0.6));
  CHECK(!verdict(points(1, 30, 0)));
  CHECK(!verdict(points(2, 15, 15)));
  CHECK(verdict(points(2, 15, 14)) == false);
  CHECK(!verdict(points(5, 10, 50)));
  CHECK(!verdict(points(5, 10, 30)));
  CHECK(verdict(points(5, 10, 29)) == false);
}

TEST_CASE("a verdict names its groups") {
  Validation validation;
  report_bands("study", "what", points(2, 15, 20), true, validation);
  REQUIRE(validation.verdicts.size() == 2);
  CHECK(validation.verdicts[0].text ==
        "what: 90 % band: 20 of 30 inside, 20 % wide, 67 % of them; wanted 85 to 95 %; 2 groups, "
        "less than 9: right bands hold 50 to 100 % of groups that err as one; 83 % of the squared "
        "error is common to a group");
  CHECK(validation.verdicts[1].text == "what, inside by group: group 0 15 of 15, group 1 5 of 15");
  // Means 0.05 and 0.15: (0.05^2 + 0.15^2) 15 of 20 x 0.05^2 + 10 x 0.2^2 = 0.375 of 0.45.
}

TEST_CASE("other levels are those of a normal distribution with the ends of each side") {
  const uncertainty::Interval half = at_level({-0.1, 0.2}, 0.5);
  const double scale = 0.6744897501960817 / 1.6448536269514722;  // normal quantiles 0.75 and 0.95
  CHECK(half.low == Approx(-0.1 * scale));
  CHECK(half.high == Approx(0.2 * scale));
  CHECK(at_level({-0.1, 0.2}, 0.9).high == Approx(0.2));
}

TEST_CASE("how often right bands hold 85 to 95 % of so many points") {
  CHECK(chance_of_bar(1) == 0);
  // 9 of 10: 10 x 0.9^9 x 0.1.
  CHECK(chance_of_bar(10) == Approx(0.387420489));
  // 17, 18 or 19 of 20.
  CHECK(chance_of_bar(20) == Approx(0.190120 + 0.285180 + 0.270170).epsilon(1e-5));
  CHECK(chance_of_bar(2000) > 0.999);
}

TEST_CASE("tables of bands are counted beside how many right bands would have in the bar") {
  Validation validation;
  add_levels("in the bar", points(10, 2, 18), validation);
  add_levels("too wide", points(10, 2, 20), validation);
  add_levels("too narrow", points(10, 2, 12), validation);
  add_levels("too few points", points(9, 2, 9), validation);
  report_share_of_tables("a study", validation);
  REQUIRE(validation.verdicts.size() == 1);
  CHECK(
      validation.verdicts[0].text ==
      "1 of 3 tables of 20 points or more have 85 to 95 % inside the 90 % band, 1 less; of right "
      "bands 2 would, if points erred each by itself, and 1 if all points of a group erred as one");
  CHECK_FALSE(validation.verdicts[0].met.has_value());
}

TEST_CASE("normal errors lie inside as often as every level says") {
  std::vector<BandPoint> held;
  constexpr int count = 2000;
  for (int draw = 0; draw < count; ++draw) {
    held.push_back({"one",
                    0.1 * normal_quantile((draw + 0.5) / count),
                    {-0.1 * 1.6448536269514722, 0.1 * 1.6448536269514722}});
  }
  Validation validation;
  add_levels("what", held, validation);
  REQUIRE(validation.calibration.size() == nominal_levels.size());
  for (const CalibrationPoint& point : validation.calibration) {
    CHECK(point.observed == Approx(point.nominal).margin(0.001));
    CHECK(point.groups == 1);
    // No band of constant width can be better than the right one.
    CHECK(point.constant_score == Approx(point.interval_score).epsilon(0.01));
    CHECK(point.constant_width == Approx(point.width).epsilon(0.02));
  }
}
