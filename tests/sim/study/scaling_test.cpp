#include "sim/study/search/scaling.hpp"

#include "tests/support/catch.hpp"

using namespace moesim::study;

TEST_CASE("scaling without a loss pays everywhere") {
  const std::vector<ScalingPoint> points{{8, 80}, {16, 160}, {64, 640}};
  const std::vector<ScalingFigures> figures = scaling_of(points);
  CHECK_FALSE(figures[0].gain);
  for (const ScalingFigures& each : figures) {
    CHECK(each.efficiency == Approx(1));
    CHECK(each.pays);
  }
  CHECK(*figures[2].gain == Approx(1));
  CHECK(pays_up_to(points) == 64);
}

TEST_CASE("GPUs that bring less than half of one at the best do not pay") {
  // 16 to 32: 16 GPUs bring 64 of 160 tokens/s, 40 % of 10 each.
  const std::vector<ScalingPoint> points{{8, 80}, {16, 140}, {32, 204}};
  const std::vector<ScalingFigures> figures = scaling_of(points);
  CHECK(*figures[1].gain == Approx(60.0 / 80));
  CHECK(*figures[2].gain == Approx(0.4));
  CHECK(figures[2].efficiency == Approx(204.0 / 320));
  CHECK_FALSE(figures[2].pays);
  CHECK(pays_up_to(points) == 16);
  CHECK(pays_up_to(points, 0.4 - 1e-9) == 32);
}

TEST_CASE("a number that suits the model badly is passed over") {
  // 24 GPUs are slower than 16; 32 are compared with 16: 90 of 160 tokens/s, 56 %.
  const std::vector<ScalingPoint> points{{8, 80}, {16, 160}, {24, 150}, {32, 250}};
  const std::vector<ScalingFigures> figures = scaling_of(points);
  CHECK(*figures[2].gain < 0);
  CHECK_FALSE(figures[2].pays);
  CHECK(*figures[3].gain == Approx(90.0 / 160));
  CHECK(pays_up_to(points) == 32);
}

TEST_CASE("few GPUs that are inefficient do not make many look good") {
  // 16 GPUs are twice as efficient as 8, which lack memory: 32 bring 40 % of those, 80 % of these.
  const std::vector<ScalingPoint> points{{8, 40}, {16, 160}, {32, 224}};
  const std::vector<ScalingFigures> figures = scaling_of(points);
  CHECK(figures[1].efficiency == Approx(2));
  CHECK(*figures[2].gain == Approx(0.4));
  CHECK(pays_up_to(points) == 16);
}

TEST_CASE("one number of GPUs pays") { CHECK(pays_up_to({{8, 80}}) == 8); }
