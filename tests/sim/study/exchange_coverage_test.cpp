#include "sim/study/validation/exchanges/exchange_coverage.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
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

TEST_CASE("a weighted quantile counts half of a value's own weight") {
  const std::vector<std::pair<double, double>> even = {{4, 1}, {1, 1}, {2, 1}, {3, 1}};
  CHECK(weighted_quantile(even, 0.5) == Approx(2.5));  // values at 1/8, 3/8, 5/8, 7/8
  CHECK(weighted_quantile(even, 0.75) == Approx(3.5));
  CHECK(weighted_quantile(even, 0.05) == Approx(1));
  CHECK(weighted_quantile(even, 0.99) == Approx(4));
  // 1 at a quarter, 2 at five eighths, 3 at seven eighths of the weight.
  CHECK(weighted_quantile({{1, 2}, {2, 1}, {3, 1}}, 0.75) == Approx(2.5));
}

TEST_CASE("a band reaches as far as nine tenths of other runs' errors, wider for few runs") {
  // Errors 0 to 20 %, 90 % of which lie below the 19th of 21, 18.4 of them: of one run Student's t
  // with one degree is 6.3138 for 1.6449.
  const std::vector<HeldOutRow> others = rows(21, 0, 0.01, "other");
  const std::vector<BandPoint> found = banded(rows(2, 0.10, 0.05, "own"), others);
  const double quantile = std::log(1.18) + 0.4 * (std::log(1.19) - std::log(1.18));
  REQUIRE(found.size() == 2);
  CHECK(found.front().group == "own");
  CHECK(found.front().band.high == Approx(6.313752 / 1.644854 * quantile));
  CHECK(found.front().band.low == Approx(-found.front().band.high));
  // Five runs with the same errors: 2.015 for 1.645.
  std::vector<HeldOutRow> more;
  for (const char* run : {"a", "b", "c", "d", "e"}) {
    for (HeldOutRow& row : rows(21, 0, 0.01, run)) more.push_back(row);
  }
  CHECK(banded(rows(1, 0, 0, "own"), more).front().band.high ==
        Approx(2.015048 / 1.644854 * quantile).epsilon(0.03));  // of 105 values, not 21
  // A run of many rows counts no more than one of few: half of the weight has no error.
  std::vector<HeldOutRow> uneven = rows(1000, 0, 0, "many");
  for (HeldOutRow& row : rows(10, 0.1, 0, "few")) uneven.push_back(row);
  CHECK(banded(rows(1, 0, 0, "own"), uneven).front().band.high ==
        Approx(2.919986 / 1.644854 * std::log(1.1)));
}

TEST_CASE("how far bands reach is told by region of sizes, without one run or with all") {
  std::vector<HeldOutRow> every = rows(21, 0, 0.01, "a");
  for (HeldOutRow row : rows(21, 0, 0.02, "b")) {
    row.bytes = 1 << 21;
    every.push_back(row);
  }
  const double quantile = std::log(1.18) + 0.4 * (std::log(1.19) - std::log(1.18));
  const auto without = reach_by_size(every, "b");
  REQUIRE(without.size() == 2);  // "a" has sizes up to 64 KiB alone, which speak up to 1 MiB
  CHECK(without.front().below == 64 * 1024 + 1);
  CHECK(without.back().below == 1024 * 1024 + 1);
  CHECK(without.front().reach == Approx(6.313752 / 1.644854 * quantile));
  CHECK(without.back().reach == Approx(without.front().reach));
  const auto all = reach_by_size(every, "");
  REQUIRE(all.size() == 4);
  CHECK(std::isinf(all.back().below));
  CHECK(all.back().reach > all.front().reach);
  CHECK(reach_by_size({}, "").empty());
}

TEST_CASE("bands of runs with errors of their own hold nine tenths of another run") {
  // Each run is off by a shift, its rows by a little more; six runs make the band of the seventh.
  constexpr int runs = 6;
  constexpr int size = 40;
  constexpr int draws = 400;
  int inside_of = 0;
  for (int draw = 0; draw < draws; ++draw) {
    std::uint32_t drawn = 0;
    const auto normal = [&] {
      const PhiloxBlock block = philox_block(
          {5, Purpose::curve_residual, static_cast<std::uint32_t>(draw), 0, drawn++}, 0);
      return normal_quantile((block[0] + 0.5) / 4294967296.0);
    };
    std::vector<HeldOutRow> every;
    std::vector<HeldOutRow> own;
    for (int run = 0; run <= runs; ++run) {
      const double shift = 0.1 * normal();
      for (int row = 0; row < size; ++row) {
        const double time = std::exp(shift + 0.05 * normal());
        (run == runs ? own : every)
            .push_back({1024, time, 1, 1, "source", "run " + std::to_string(run)});
      }
    }
    inside_of += static_cast<int>(inside(banded(own, every)));
  }
  const double share = inside_of / static_cast<double>(draws * size);
  CHECK(share > 0.87);
  CHECK(share < 0.93);
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
