#include "sim/study/validation/exchanges/exchange_errors.hpp"

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;

TEST_CASE(
    "a curve takes the least of disturbed repeats, the median of the others, and never falls") {
  const Samples samples = {{100, 9}, {100, 5}, {200, 4}, {200, 8}, {400, 10}, {400, 30}, {400, 20}};
  const auto curve = curve_through(samples, 300);
  REQUIRE(curve);
  CHECK(curve->time_us(200) == 4);
  CHECK(curve->time_us(100) == 4);   // 200 bytes took 4 us: 100 take no more
  CHECK(curve->time_us(400) == 20);  // the median
  CHECK_FALSE(curve_through({{100, 5}}, 0));
  CHECK_FALSE(curve_through({{100, 5}, {200, 5}}, 0));  // says nothing of larger sizes
  const Samples least = least_of_each(samples);
  REQUIRE(least.size() == 3);
  CHECK(least[0] == std::pair<double, double>(100, 5));
}

TEST_CASE("alpha-beta finds a line in what is one") {
  const auto line = alpha_beta({{0, 3}, {10, 5}, {1000, 203}});  // 3 us + 0.2 us per byte
  CHECK(line(0) == Approx(3));
  CHECK(line(500) == Approx(103));
}

TEST_CASE("errors are counted from the measurement, and the worst is named") {
  Comparison comparison;
  comparison.law.add(100, 90, "1 KiB");
  comparison.law.add(100, 102, "2 KiB");
  comparison.law.add(100, 101, "4 KiB");
  comparison.alpha_beta.add(100, 150, "1 KiB");
  CHECK(comparison.law.median_abs() == Approx(0.02));
  CHECK(comparison.law.worst() == "-10 % at 1 KiB");
  Comparison more;
  more.law.add(100, 140, "8 KiB");
  more.alpha_beta.add(100, 100, "8 KiB");
  more.scatter = {0.01};
  comparison.add(more);
  CHECK(comparison.law.worst() == "+40 % at 8 KiB");
  const ValidationRow row = report_row(comparison, "x");
  REQUIRE(row.medians);
  CHECK(row.medians->law == Approx(0.06));  // between 2 and 10 %
  CHECK(*row.medians->alpha_beta == Approx(0.25));
  CHECK_FALSE(row.medians->equal_bytes);
  CHECK_FALSE(row.medians->nearest_row);
  CHECK(*row.medians->repeats == Approx(0.01));
  CHECK(row.note == "worst +40 % at 8 KiB");
}

TEST_CASE("sizes are named in binary units") {
  CHECK(size_text(512) == "512 B");
  CHECK(size_text(64 * 1024) == "64 KiB");
  CHECK(size_text(512.0 * 1024 * 1024) == "512 MiB");
}
