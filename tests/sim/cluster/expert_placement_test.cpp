#include "sim/cluster/expert_placement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using moesim::UsageError;
using moesim::cluster::balanced_experts;
using moesim::cluster::contiguous_experts;
using moesim::cluster::ExpertPlacement;
using moesim::cluster::round_robin_experts;

namespace {

using Loads = std::vector<double>;

// Loads of every kind: even, skewed by a power law, mostly zero, with ties.
Loads random_loads(std::mt19937& random, int experts) {
  const double power = std::uniform_real_distribution<>(0, 3)(random);
  const int kind = std::uniform_int_distribution<>(0, 3)(random);
  Loads loads;
  for (int expert = 0; expert < experts; ++expert) {
    const double uniform = std::uniform_real_distribution<>(0.001, 1)(random);
    loads.push_back(kind == 0   ? std::floor(10 * uniform)
                    : kind == 1 ? (uniform < 0.8 ? 0 : uniform)
                                : std::pow(uniform, -power));
  }
  return loads;
}

double sum(const Loads& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// What holds for every placement: each expert on a rank, as many on each, and the ranks' loads sum
// up to the experts'.
void check_sound(const ExpertPlacement& placement, const Loads& loads, int ranks, int each) {
  REQUIRE(placement.ranks == ranks);
  REQUIRE(placement.rank_of.size() == loads.size());
  for (const int rank : placement.rank_of) REQUIRE((rank >= 0 && rank < ranks));
  for (const int slots : placement.slots()) REQUIRE(slots == each);
  REQUIRE(sum(placement.rank_loads(loads)) == Approx(sum(loads)));
}

}  // namespace

TEST_CASE("contiguous experts follow the house's rule, round-robin ones alternate") {
  CHECK(contiguous_experts(4, 2).rank_of == std::vector<int>{0, 0, 1, 1});
  CHECK(round_robin_experts(4, 2).rank_of == std::vector<int>{0, 1, 0, 1});
  CHECK(contiguous_experts(3, 3) == round_robin_experts(3, 3));
}

TEST_CASE("experts by load: the heaviest first, each to the least loaded rank with room") {
  // 8 | 7, then 6 to the lower sum, 7: rank 1 is full with 13, and 5 goes to rank 0.
  const ExpertPlacement placement = balanced_experts(Loads{8, 7, 6, 5}, 2);
  CHECK(placement.rank_of == std::vector<int>{0, 1, 1, 0});
  CHECK(placement.highest_load(Loads{8, 7, 6, 5}) == 13);
}

TEST_CASE("greedy placements are sound and never worse than what they refine") {
  std::mt19937 random(11);
  int strictly_better = 0;
  for (int round = 0; round < 2000; ++round) {
    const int ranks = std::uniform_int_distribution<>(1, 16)(random);
    const int each = std::uniform_int_distribution<>(1, 6)(random);
    const Loads loads = random_loads(random, ranks * each);
    CAPTURE(round, ranks, each);
    const ExpertPlacement contiguous = contiguous_experts(ranks * each, ranks);
    const ExpertPlacement balanced = balanced_experts(loads, ranks);
    check_sound(contiguous, loads, ranks, each);
    check_sound(round_robin_experts(ranks * each, ranks), loads, ranks, each);
    check_sound(balanced, loads, ranks, each);
    REQUIRE(balanced.highest_load(loads) <= contiguous.highest_load(loads));
    // Nothing beats an even share.
    const double even = sum(loads) / ranks;
    REQUIRE(balanced.highest_load(loads) >= even * (1 - 1e-12));
    strictly_better += balanced.highest_load(loads) < contiguous.highest_load(loads) ? 1 : 0;
  }
  CHECK(strictly_better > 1000);
}

TEST_CASE("experts that cannot be placed are refused") {
  CHECK_THROWS_AS(contiguous_experts(5, 2), UsageError);
  CHECK_THROWS_AS(round_robin_experts(4, 0), UsageError);
  CHECK_THROWS_WITH(balanced_experts(Loads{1, 2, 3}, 2),
                    ContainsSubstring("3 experts cannot be shared out evenly over 2 ranks"));
  CHECK_THROWS_WITH(balanced_experts(Loads{1, -2}, 2), ContainsSubstring("expert 1"));
  CHECK_THROWS_AS(balanced_experts(Loads{std::numeric_limits<double>::quiet_NaN()}, 1), UsageError);
}
