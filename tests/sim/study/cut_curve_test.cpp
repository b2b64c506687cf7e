#include "sim/study/validation/exchanges/cut_curve.hpp"

#include <cmath>

#include "sim/base/no_answer.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;
using profile::Collective;
using profile::Estimate;
using profile::NodeLinks;

namespace {

NodeLinks behind_switch() {
  NodeLinks links;
  links.kind = NodeLinks::Kind::nvlink_switch;
  links.port_bytes_per_us = 4.5e5;
  links.gpus = 8;
  return links;
}

// 10 us and a us for each GPU; bytes sent at 1e5 B/us. Two runs, a tenth apart.
Counts measured() {
  Counts counts;
  for (const int gpus : {2, 4, 8}) {
    for (double size = 512; size <= 1 << 29; size *= 2) {
      const double time_us = 10 + gpus + size * (gpus - 1) / gpus / 1e5;
      counts[gpus].emplace_back(size, time_us * 0.95);
      counts[gpus].emplace_back(size, time_us * 1.05);
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("a cut curve knows the counts that are kept and answers the others by the law") {
  const auto curve =
      curve_cut_to(Collective::all_gather, behind_switch(), measured(), {2, 4}, 8, {});
  REQUIRE(curve);
  const Estimate four = curve->estimate(4, 1 << 20, true);
  CHECK(four.origin == profile::Origin::measured);
  CHECK(four.time_us == Approx(14 + (1 << 20) * 0.75 / 1e5));  // the median of both runs
  const Estimate eight = curve->estimate(8, 1 << 29, true);
  CHECK(eight.origin == profile::Origin::derived);
  CHECK(eight.time_us == Approx(18 + (1 << 29) * 0.875 / 1e5).epsilon(0.01));
  // The law's errors in the program, where none are given.
  const profile::Residual law =
      profile::errors_of_law(Collective::all_gather, NodeLinks::Kind::nvlink_switch);
  CHECK(eight.time_us_p95 == Approx(eight.time_us * (1 + law.regions().back().q95)));
}

TEST_CASE("errors that are given are those of more GPUs, joined by the scatter of other runs") {
  const CutErrors errors{{{1 << 20, 0.5}, {INFINITY, 0.3}}, {{INFINITY, 0.4}}};
  const auto own = curve_cut_to(Collective::all_gather, behind_switch(), measured(), {2, 4}, 8,
                                {errors.law, {}});
  const auto any =
      curve_cut_to(Collective::all_gather, behind_switch(), measured(), {2, 4}, 8, errors);
  REQUIRE(own);
  REQUIRE(any);
  const auto reach = [](const Estimate& estimate) {
    return std::log(estimate.time_us_p95 / estimate.time_us);
  };
  CHECK(reach(own->estimate(8, 1 << 10, true)) == Approx(0.5));
  CHECK(reach(own->estimate(8, 1 << 28, true)) == Approx(0.3));
  CHECK(reach(any->estimate(8, 1 << 28, true)) == Approx(0.5));  // 0.3 and 0.4 in squares
}

TEST_CASE("what makes no curve is absent, and what no law answers is not measured") {
  CHECK_FALSE(curve_cut_to(Collective::all_gather, behind_switch(),
                           {{2, {{512, 10}}}, {4, {{512, 10}}}}, {2, 4}, 8, {}));
  NodeLinks links;
  links.kind = NodeLinks::Kind::pcie;
  const auto curve = curve_cut_to(Collective::all_to_all, links, measured(), {2}, 4, {});
  REQUIRE(curve);
  CHECK_THROWS_AS(curve->estimate(4, 1 << 20), NotMeasured);
}
