#include "sim/profile/moe_exchange_law.hpp"

#include <cmath>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

constexpr NodeStep two_nodes = {8, 2, 45e3, 6};

// 20 us and 0.1 us per token.
SizeCurve one_node() { return SizeCurve({1, 1e6}, {20, 20 + 0.1 * (1e6 - 1)}); }

}  // namespace

TEST_CASE("the groups that a token meets follow from drawing without repetition") {
  // One expert per token meets one group; all experts meet all groups.
  CHECK(distinct_groups({256, 1, 0}, 8) == Approx(1));
  CHECK(distinct_groups({8, 8, 0}, 8) == Approx(8));
  // Two of four experts in two groups: the second lies in the other group in 2 of 3 cases.
  CHECK(distinct_groups({4, 2, 0}, 2) == Approx(1 + 2.0 / 3));
}

TEST_CASE("DeepEP's normal dispatch copies more often on two nodes, or waits for the NIC") {
  const MoeTraffic light = {256, 8, 1};  // a byte per token: the NIC does not matter
  const double copies =
      (distinct_groups(light, 16) + distinct_groups(light, 2)) / distinct_groups(light, 8);
  CHECK(deepep_normal_us(one_node(), light, two_nodes, MoeStage::dispatch, 1000) ==
        Approx(20 + 0.1 * 999 * copies));
  const double sums = 2 * distinct_groups(light, 16) / distinct_groups(light, 8);
  CHECK(deepep_normal_us(one_node(), light, two_nodes, MoeStage::combine, 1000) ==
        Approx(20 + 0.1 * 999 * sums));
  // One expert per token, 90 kB each: half of 1000 tokens cross at 45 kB/us.
  CHECK(deepep_normal_us(one_node(), {256, 1, 90e3}, two_nodes, MoeStage::dispatch, 1000) ==
        Approx(20 + 1000.0));
}

TEST_CASE("DeepEP's low-latency kernels send each token to each of its experts") {
  // 100 tokens to 8 experts, half of them on the other node: 400 messages of 4500 B at 45 kB/us.
  CHECK(deepep_low_latency_us(one_node(), {256, 8, 4500}, two_nodes, 100) == Approx(20 + 6 + 40));
  // Never faster than one node.
  CHECK(deepep_low_latency_us(one_node(), {256, 8, 1}, two_nodes, 1e5) ==
        Approx(one_node().time_us(1e5)));
  CHECK_THROWS_WITH(deepep_low_latency_us(one_node(), {250, 8, 1}, two_nodes, 1),
                    ContainsSubstring("250 experts"));
}

TEST_CASE("inside a domain the copies that leave a rank add to the fixed part by their cubes") {
  // Top-8 meets all of up to 8 ranks: 1, 3 and 7 copies leave. Fixed 0.02, a copy 0.01 us/token.
  const auto per_token = [](double copies) {
    return std::cbrt(std::pow(0.02, 3) + std::pow(0.01 * copies, 3));
  };
  const auto curve = [&](double floor, double copies) {
    return SizeCurve({1, 65536}, {floor, floor + 65535 * per_token(copies)});
  };
  const SizeCurve eight = among_more_ranks(curve(10, 1), 2, curve(11, 3), 4, 8, 8);
  CHECK(eight.time_us(1) == Approx(12));  // the floor rises by 1 us per doubling
  CHECK(eight.time_us(4096) == Approx(12 + 4095 * per_token(7)));
  CHECK_THROWS_AS(among_more_ranks(curve(10, 1), 2, curve(11, 3), 4, 4, 8), Error);
}
