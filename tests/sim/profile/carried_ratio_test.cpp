#include "sim/profile/carried_ratio.hpp"

#include <cmath>

#include "tests/support/catch.hpp"

using namespace moesim;
using profile::CarriedRatio;
using profile::carry_beyond;

// The usual time is 20 us and 1 us for each unit of bytes.
namespace {

double usual(double bytes) { return 20 + bytes; }

CarriedRatio carried(double ratio, double edge, double bytes) {
  return carry_beyond(std::log(ratio), bytes / edge, usual(edge) / usual(bytes));
}

}  // namespace

TEST_CASE("at the edge a ratio is what was measured") {
  const CarriedRatio same = carried(1.5, 100, 100);
  CHECK(std::exp(same.log) == Approx(1.5));
  CHECK(same.low == same.log);
  CHECK(same.high == same.log);
  CHECK(same.octaves == 0);
}

TEST_CASE("a ratio carries over between the ratio itself and the same difference") {
  // 60 us more at 100 units. At 800 units 60 us of 820, or half.
  const CarriedRatio above = carried(1.5, 100, 800);
  CHECK(std::exp(above.low) == Approx(1 + 60.0 / 820));
  CHECK(std::exp(above.high) == Approx(1.5));
  CHECK(above.octaves == Approx(3));
  // 100 units take 102.5 us at the rate of 800: 102.5 / 120 of the edge is of its bytes.
  const double alike = 102.5 / 120;
  CHECK(std::exp(above.log) == Approx(1 + 0.5 * alike + 60.0 / 820 * (1 - alike)));
  // At 10 units 6 us of 30, or half; of the edge's 120 us 30 are latency.
  const CarriedRatio below = carried(1.5, 100, 10);
  CHECK(std::exp(below.low) == Approx(1.2));
  CHECK(std::exp(below.high) == Approx(1.5));
  CHECK(std::exp(below.log) == Approx(1 + 0.5 * 0.25 + 0.2 * 0.75));
  CHECK(below.octaves == Approx(std::log2(10.0)));
}

TEST_CASE("a faster edge reads the other way round") {
  const CarriedRatio above = carried(0.5, 100, 800);
  CHECK(std::exp(above.low) == Approx(0.5));
  CHECK(std::exp(above.high) == Approx(1 - 60.0 / 820));
  CHECK(above.log > above.low);
  CHECK(above.log < above.high);
}
