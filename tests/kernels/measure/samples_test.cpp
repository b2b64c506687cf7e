#include "kernels/measure/timing/samples.hpp"

#include <cmath>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;

namespace {

std::vector<double> one_to(int last) {
  std::vector<double> values;
  for (int value = 1; value <= last; ++value) values.push_back(value);
  return values;
}

}  // namespace

// The ranks are those of the published table (Le Boudec, Performance Evaluation, table A.1): n =
// 10: 2 and 9; n = 20: 6 and 15; n = 31: 10 and 22; n = 70: 27 and 44. Below 6 there is none.
TEST_CASE("the interval of the median takes the tabled order statistics") {
  struct Row {
    int n, low, high;
  };
  for (const Row& row :
       {Row{6, 1, 6}, Row{10, 2, 9}, Row{20, 6, 15}, Row{31, 10, 22}, Row{70, 27, 44}}) {
    CAPTURE(row.n);
    const auto interval = measure::median_interval(one_to(row.n));
    REQUIRE(interval);
    CHECK(interval->low == row.low);
    CHECK(interval->high == row.high);
  }
  CHECK_FALSE(measure::median_interval(one_to(5)));
  CHECK_FALSE(measure::median_interval({}));
}

TEST_CASE("the interval does not depend on the order of the samples") {
  const auto interval = measure::median_interval({9, 1, 8, 2, 7, 3, 6, 4, 5, 10});
  REQUIRE(interval);
  CHECK(interval->low == 2);
  CHECK(interval->high == 9);
}

// The interval must hold the true median ln 2 in at least 95 % of 2,000 samples of 41 exponential
// variates (far from normal); three standard errors of that share are 1.5 %.
TEST_CASE("the interval covers the true median of a skewed distribution") {
  int covered = 0;
  constexpr int trials = 2000;
  moesim::Stream stream({7, moesim::Purpose::test_data});
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> samples;
    for (int draw = 0; draw < 41; ++draw) samples.push_back(-std::log(stream.uniform()));
    const auto interval = measure::median_interval(samples);
    covered += interval->low <= std::log(2.0) && std::log(2.0) <= interval->high;
  }
  CHECK(covered >= trials * 0.935);
  CHECK(covered <= trials * 0.99);
}

// 1..9 and 100: median 5.5, |x - 5.5| = .5 .5 1.5 1.5 2.5 2.5 3.5 3.5 4.5 94.5, their median 2.5;
// 94.5 / 2.5 = 37.8 > 14.8 is one outlier, kept among the samples.
TEST_CASE("a summary counts outliers and keeps them") {
  std::vector<double> samples = one_to(9);
  samples.push_back(100);
  const measure::Summary summary = measure::summarise(samples);
  CHECK(summary.n == 10);
  CHECK(summary.median == 5.5);
  CHECK(summary.mad == 2.5);
  CHECK(summary.outliers == 1);
  CHECK(summary.least == 1);
  CHECK(*summary.ci95 == Approx((9.0 - 2.0) / 2));
  CHECK(summary.p95 == Approx(9 + 0.55 * 91));
}

TEST_CASE("equal samples have no spread and no outliers") {
  const measure::Summary summary = measure::summarise(std::vector<double>(40, 3.5));
  CHECK(summary.median == 3.5);
  CHECK(summary.mad == 0);
  CHECK(summary.outliers == 0);
  CHECK(*summary.ci95 == 0);
}

TEST_CASE("samples at a fallen clock are dropped up to a fifth, then the point is marked") {
  std::vector<double> times(20, 10.0), clocks(20, 1980.0);
  for (int slow = 0; slow < 4; ++slow) times[slow] = 20, clocks[slow] = 1400;  // 71 % of 1980
  const measure::Filtered few = measure::filter_by_clock(times, clocks);
  CHECK(few.dropped == 4);
  CHECK_FALSE(few.throttled);
  CHECK(few.kept == std::vector<double>(16, 10.0));
  CHECK(few.median_clock_mhz == 1980);

  times[4] = 20, clocks[4] = 1400;  // 5 of 20: more than a fifth
  const measure::Filtered many = measure::filter_by_clock(times, clocks);
  CHECK(many.throttled);
  CHECK(many.dropped == 0);
  CHECK(many.kept == times);
}

TEST_CASE("a clock that is not known drops nothing") {
  const measure::Filtered result = measure::filter_by_clock({1, 2, 3}, {0, 0, 0});
  CHECK(result.kept == std::vector<double>{1, 2, 3});
  CHECK(result.median_clock_mhz == 0);
  CHECK_FALSE(result.throttled);
}
