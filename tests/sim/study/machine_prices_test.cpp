#include "sim/study/search/machine_prices.hpp"

#include <cmath>

#include "tests/support/catch.hpp"

using namespace moesim::study;
using moesim::uncertainty::BandLevel;

namespace {

// The measured ratio of speeds is 0.5 to 2 times the predicted one at 90 %, 0.8 to 1.25 at 50 %.
std::vector<BandLevel> known() {
  return {{0.9, {std::log(0.5), std::log(2.0)}}, {0.5, {std::log(0.8), std::log(1.25)}}};
}

}  // namespace

TEST_CASE("a machine breaks even at the price of the other times the ratio of their speeds") {
  const BreakEven found = break_even(3, 1.6, known());
  CHECK(found.price == Approx(4.8));
  REQUIRE(found.ranges.size() == 2);
  CHECK(found.ranges[0].level == 0.9);
  CHECK(found.ranges[0].low == Approx(2.4));
  CHECK(found.ranges[0].high == Approx(9.6));
  CHECK(found.ranges[1].low == Approx(3.84));
  CHECK(found.ranges[1].high == Approx(6));
  CHECK(break_even(3, 1.6, {}).ranges.empty());
}

TEST_CASE("a token costs the price over the speed") {
  CHECK(token_cost(2, 1.6, {}).ratio == Approx(1.25));
  CHECK_FALSE(token_cost(2, 1.6, {}).chance);
}

// At the price of an end both cost the same if the ratio is off by as much.
TEST_CASE("outside of the break-even prices of a level it is sure who is cheaper") {
  const double speed = 1.6;
  const BreakEven ends = break_even(1, speed, known());
  const auto chance = [&](double prices) {
    return token_cost(prices, speed, known()).chance.value_or(0);
  };
  CHECK(chance(ends.price) == 0);
  CHECK(chance(0.999 * ends.ranges[1].high) == 0);
  CHECK(chance(1.001 * ends.ranges[1].low) == 0);
  CHECK(chance(1.001 * ends.ranges[1].high) == 0.75);
  CHECK(chance(0.999 * ends.ranges[1].low) == 0.75);
  CHECK(chance(0.999 * ends.ranges[0].high) == 0.75);
  CHECK(chance(1.001 * ends.ranges[0].high) == 0.95);
  CHECK(chance(0.999 * ends.ranges[0].low) == 0.95);
}

TEST_CASE("which of two machines is cheaper is as sure the other way round") {
  const std::vector<BandLevel> symmetric = {{0.9, {-0.4, 0.4}}, {0.5, {-0.1, 0.1}}};
  for (const double prices : {0.5, 0.9, 1.0, 1.3, 2.0}) {
    const TokenCost one = token_cost(prices, 1.2, symmetric);
    const TokenCost other = token_cost(1 / prices, 1 / 1.2, symmetric);
    CHECK(one.ratio * other.ratio == Approx(1));
    CHECK(one.chance == other.chance);
  }
}
