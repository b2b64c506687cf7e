#include "sim/study/validation/exchanges/exchange_coverage.hpp"

#include <algorithm>
#include <cmath>

#include "sim/study/validation/exchanges/exchange_predictors.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;
using profile::SizeCurve;

namespace {

// Rows of 1 KiB that took 1 + first, 1 + first + step, ... times what was predicted.
std::vector<HeldOutRow> rows(int count, double first, double step, const std::string& target) {
  std::vector<HeldOutRow> found;
  for (int row = 0; row < count; ++row) {
    found.push_back({1024, 1 + first + step * row, 1, 1, "source", target});
  }
  return found;
}

std::size_t inside(const std::vector<BandPoint>& points) {
  return static_cast<std::size_t>(
      std::count_if(points.begin(), points.end(),
                    [](const BandPoint& point) { return point.band.contains(point.error); }));
}

}  // namespace

TEST_CASE("a band holds what lies between the quantiles of other runs' errors") {
  // Errors 0 to 20 %: the 5 % quantile is cut at none, the 95 % quantile is 19 %.
  const std::vector<HeldOutRow> others = rows(21, 0, 0.01, "other");
  const std::vector<BandPoint> found = banded(rows(4, 0.10, 0.05, "own"), others, {1, false});
  REQUIRE(found.size() == 4);  // 10, 15 % inside; 20 and 25 % not
  CHECK(inside(found) == 2);
  CHECK(found.front().group == "own");
  CHECK(found.front().band.high == Approx(std::log(1.19)));
  CHECK(coverage_text(found) == "90 % band: 2 of 4 inside, 19 % wide");
  // 1.4 times as wide in the logs: up to 1.19^1.4 = 1.276.
  CHECK(inside(banded(rows(4, 0.10, 0.05, "own"), others)) == 4);
  // As far down as up: 1 / 1.19 = 0.84.
  CHECK(inside(banded(rows(2, -0.17, 0.02, "own"), others, {1, true})) == 1);
}

TEST_CASE("rows of the run itself make no band for it") {
  const std::vector<HeldOutRow> own = rows(30, 0, 0.01, "own");
  CHECK(banded(own, own).empty());
  std::vector<HeldOutRow> from_it = rows(30, 0, 0.01, "other");
  for (HeldOutRow& row : from_it) row.source = "own";
  CHECK(banded(own, from_it).empty());
}

TEST_CASE("what a switch at another size explains is no error of the band") {
  // All took half as long, where the curve lies twice above the line through its sides.
  std::vector<HeldOutRow> others = rows(20, -0.5, 0, "other");
  for (HeldOutRow& row : others) row.over_chord = 2;
  std::vector<HeldOutRow> own = rows(1, -0.4, 0, "own");
  CHECK(inside(banded(own, others)) == 0);  // the band of a curve without a bend has no width
  own.front().over_chord = 2;
  CHECK(inside(banded(own, others)) == 1);
}

TEST_CASE("a tail goes on with the last octave, 2 % less per octave") {
  // 1 us per byte: 200 to 400 bytes take 0.98 of 200 us, 400 to 800 take 0.98^2 of 400.
  const SizeCurve tail = with_tail(SizeCurve({100, 200}, {50, 150}), 1600);
  CHECK(tail.time_us(150) == Approx(100));
  CHECK(tail.time_us(400) == Approx(150 + 0.98 * 200));
  CHECK(tail.time_us(800) == Approx(150 + 0.98 * 200 + 0.98 * 0.98 * 400));
  CHECK(tail.largest() == 1600);
}

TEST_CASE("a sibling lends its times, scaled by half the ratio of the two") {
  // Own machine 1.21 times as slow among 2 and 4: among 8 it is taken for 1.1 times.
  const auto run = [](double scale, int most) {
    Run found;
    for (int gpus = 2; gpus <= most; gpus *= 2) {
      found.emplace(gpus, SizeCurve({1024, 2048, 4096},
                                    {scale * gpus, 1.5 * scale * gpus, 2 * scale * gpus}));
    }
    return found;
  };
  const SizeCurve eight = from_sibling({run(1.21, 4)}, {run(1, 8), run(1, 4)}, 8);
  for (const double bytes : {1024.0, 2048.0, 4096.0}) {
    CHECK(eight.time_us(bytes) == Approx(1.1 * run(1, 8).at(8).time_us(bytes)));
  }
}
