#include "sim/uncertainty/statistics/conformal.hpp"

#include <cmath>

#include "sim/base/error.hpp"
#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/statistics/coverage.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

TEST_CASE("90 % needs 9 groups, 80 % needs 4, 50 % one") {
  CHECK(level_allowed(9, 0.9));
  CHECK_FALSE(level_allowed(8, 0.9));
  CHECK(level_allowed(4, 0.8));
  CHECK_FALSE(level_allowed(3, 0.8));
  CHECK(level_allowed(1, 0.5));
  CHECK_FALSE(level_allowed(0, 0.5));
}

TEST_CASE("with as many groups as a level just allows, the farthest one is the end") {
  std::vector<HeldOut> groups;
  for (int group = 1; group <= 9; ++group) groups.push_back({0, {0.1 * group}});
  const Interval band = jackknife_plus(groups, 0.9);
  CHECK(band.high == Approx(0.9));
  CHECK(band.low == Approx(-0.9));
  // Half of 10 equal weights, one of them beyond everything, lie at or below the fifth score.
  CHECK(jackknife_plus(groups, 0.5).high == Approx(0.5));
  groups.pop_back();
  CHECK_THROWS_AS(jackknife_plus(groups, 0.9), Error);
}

TEST_CASE("a group of many points weighs as much as one of a single point") {
  const std::vector<HeldOut> groups = {{0, {1, 1, 1, 1, 1, 1, 1, 1}}, {0, {2}}, {0, {3}}};
  CHECK(jackknife_plus(groups, 0.5).high == Approx(2));
}

TEST_CASE("each end takes the centres that were predicted without a group") {
  const std::vector<HeldOut> groups = {{1, {0.1}}, {2, {0.1}}, {3, {0.1}}, {4, {0.1}}};
  const Interval band = jackknife_plus(groups, 0.8);
  CHECK(band.low == Approx(0.9));
  CHECK(band.high == Approx(4.1));
}

TEST_CASE("ends that would cross meet in the middle") {
  // At 10 %, of ten groups: centre - score is at most 0.09 for all but one group, so the lower end
  // is the last but one, 0.98; the upper end is the second of 1.01 and 0.02: 0.02.
  std::vector<HeldOut> groups = {{0, {0.01}}, {0, {0.02}}};
  for (int group = 0; group < 8; ++group) groups.push_back({1, {0.01}});
  const Interval band = jackknife_plus(groups, 0.1);
  CHECK(band.low <= band.high);
  CHECK(band.width() == Approx(0).margin(1e-12));
  CHECK(band.low > 0);
  CHECK(band.high < 1);
  // At 80 % the ends of the same groups are in order and stay as they are.
  CHECK(jackknife_plus(groups, 0.8).width() == Approx(1.02).epsilon(0.05));
}

TEST_CASE("the interval score is the width, and what lies beyond over half the miss rate") {
  const std::vector<Judged> judged = {{0, {-1, 1}}, {1.5, {-1, 1}}};
  const Coverage coverage = coverage_of(judged, 0.9);
  CHECK(coverage.inside == Approx(0.5));
  CHECK(coverage.width == Approx(2));
  CHECK(coverage.interval_score == Approx(2 + 0.5 * (2 / 0.1) * 0.5));
}

TEST_CASE("the best constant band of ten equal distances reaches them") {
  const Coverage band = constant_band({0.2, -0.2, 0.2, -0.2}, 0.9);
  CHECK(band.width == Approx(0.4));
  CHECK(band.inside == Approx(1));
}

// Groups with a shift of their own, several points each: a new group's points are inside as often
// as the level says.
TEST_CASE("bands of normal groups hold the share of points that they name") {
  constexpr int groups = 15;
  constexpr int points = 3;
  int inside = 0;
  constexpr int runs = 2000;
  for (int run = 0; run < runs; ++run) {
    std::uint32_t drawn = 0;
    const auto normal = [&] {
      const PhiloxBlock block = philox_block(
          {7, Purpose::curve_residual, static_cast<std::uint32_t>(run), 0, drawn++}, 0);
      return normal_quantile((block[0] + 0.5) / 4294967296.0);
    };
    std::vector<std::vector<double>> values(groups + 1);
    for (auto& group : values) {
      const double shift = 0.3 * normal();
      for (int point = 0; point < points; ++point) group.push_back(shift + 0.1 * normal());
    }
    std::vector<HeldOut> held;
    for (int out = 0; out < groups; ++out) {
      double sum = 0;
      for (int other = 0; other < groups; ++other) {
        if (other != out) sum += mean(values[static_cast<std::size_t>(other)]);
      }
      HeldOut each{sum / (groups - 1), {}};
      for (const double value : values[static_cast<std::size_t>(out)]) {
        each.scores.push_back(std::abs(value - each.centre));
      }
      held.push_back(each);
    }
    if (jackknife_plus(held, 0.8).contains(values.back().front())) ++inside;
  }
  CHECK(inside > 0.78 * runs);
  CHECK(inside < 0.90 * runs);
}
