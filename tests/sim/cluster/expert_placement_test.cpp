#include "sim/cluster/expert_placement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using moesim::ByteMatrix;
using moesim::UsageError;
using moesim::cluster::balanced_experts;
using moesim::cluster::contiguous_experts;
using moesim::cluster::dispatch_bytes;
using moesim::cluster::ExpertPlacement;
using moesim::cluster::replicated_experts;
using moesim::cluster::round_robin_experts;
using moesim::cluster::transposed;

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

// What holds for every placement: each expert somewhere, never twice on one rank, no rank over its
// room, and the ranks' loads sum up to the experts'.
void check_sound(const ExpertPlacement& placement, const Loads& loads, int ranks, int room) {
  REQUIRE(placement.ranks == ranks);
  REQUIRE(placement.ranks_of.size() == loads.size());
  for (const std::vector<int>& holders : placement.ranks_of) {
    REQUIRE_FALSE(holders.empty());
    REQUIRE(std::set<int>(holders.begin(), holders.end()).size() == holders.size());
    REQUIRE(std::is_sorted(holders.begin(), holders.end()));
    REQUIRE((holders.front() >= 0 && holders.back() < ranks));
  }
  for (const int slots : placement.slots()) REQUIRE(slots <= room);
  REQUIRE(sum(placement.rank_loads(loads)) == Approx(sum(loads)));
}

}  // namespace

TEST_CASE("contiguous experts follow the house's rule, round-robin ones alternate") {
  CHECK(contiguous_experts(4, 2).ranks_of == std::vector<std::vector<int>>{{0}, {0}, {1}, {1}});
  CHECK(round_robin_experts(4, 2).ranks_of == std::vector<std::vector<int>>{{0}, {1}, {0}, {1}});
  CHECK(contiguous_experts(3, 3) == round_robin_experts(3, 3));
}

TEST_CASE("experts by load: the heaviest first, each to the least loaded rank with room") {
  // 8 | 7, then 6 to the lower sum, 7: rank 1 is full with 13, and 5 goes to rank 0.
  const ExpertPlacement placement = balanced_experts(Loads{8, 7, 6, 5}, 2);
  CHECK(placement.ranks_of == std::vector<std::vector<int>>{{0}, {1}, {1}, {0}});
  CHECK(placement.highest_load(Loads{8, 7, 6, 5}) == 13);
}

TEST_CASE("an expert as hot as all others is split over its replicas") {
  // The first of two spare slots halves the load of 12. Its replicas of 6 are still the highest,
  // but on every rank already: the second one goes to the first of the others. Packed by load: 6 |
  // 6, 2 | 2, 1 | 1.
  const Loads loads{12, 2, 2, 2};
  const ExpertPlacement placement = replicated_experts(loads, 2, 1);
  CHECK(placement.ranks_of[0] == std::vector<int>{0, 1});
  CHECK(placement.ranks_of[1] == std::vector<int>{0, 1});
  CHECK(placement.rank_loads(loads) == Loads{9, 9});
  CHECK(balanced_experts(loads, 2).highest_load(loads) == 14);
}

TEST_CASE("greedy placements are sound and never worse than what they refine") {
  std::mt19937 random(11);
  int strictly_better = 0;
  for (int round = 0; round < 2000; ++round) {
    const int ranks = std::uniform_int_distribution<>(1, 16)(random);
    const int each = std::uniform_int_distribution<>(1, 6)(random);
    const int spare = std::uniform_int_distribution<>(0, 4)(random);
    const Loads loads = random_loads(random, ranks * each);
    CAPTURE(round, ranks, each, spare);
    const ExpertPlacement contiguous = contiguous_experts(ranks * each, ranks);
    const ExpertPlacement balanced = balanced_experts(loads, ranks);
    const ExpertPlacement replicated = replicated_experts(loads, ranks, spare);
    check_sound(contiguous, loads, ranks, each);
    check_sound(round_robin_experts(ranks * each, ranks), loads, ranks, each);
    check_sound(balanced, loads, ranks, each);
    check_sound(replicated, loads, ranks, each + spare);
    for (const int slots : balanced.slots()) REQUIRE(slots == each);
    REQUIRE(balanced.highest_load(loads) <= contiguous.highest_load(loads));
    REQUIRE(replicated.highest_load(loads) <= balanced.highest_load(loads));
    // Nothing beats an even share.
    const double even = sum(loads) / ranks;
    REQUIRE(replicated.highest_load(loads) >= even * (1 - 1e-12));
    strictly_better += replicated.highest_load(loads) < balanced.highest_load(loads) ? 1 : 0;
  }
  CHECK(strictly_better > 1000);
}

TEST_CASE("with room for all experts everywhere, every loaded expert is on every rank") {
  const Loads loads{5, 1, 0, 3};
  const ExpertPlacement placement = replicated_experts(loads, 4, 3);
  for (const std::size_t expert : {0U, 1U, 3U}) CHECK(placement.ranks_of[expert].size() == 4);
  CHECK(placement.ranks_of[2].size() == 1);
  CHECK(placement.highest_load(loads) == Approx(9 / 4.0));
}

TEST_CASE("tokens become bytes from their rank to their experts' ranks") {
  // Two ranks, experts 0 and 1 on rank 0, 2 and 3 on rank 1; 10 bytes per token.
  const std::vector<std::int64_t> counts{1, 2, 3, 4,  //
                                         5, 6, 7, 8};
  const ByteMatrix bytes = dispatch_bytes(counts, contiguous_experts(4, 2), 10);
  CHECK(bytes.at(0, 0) == 30);
  CHECK(bytes.at(0, 1) == 70);
  CHECK(bytes.at(1, 0) == 110);
  CHECK(bytes.at(1, 1) == 150);
  const ByteMatrix back = transposed(bytes);
  CHECK(back.at(0, 1) == 110);
  CHECK(back.at(1, 0) == 70);
}

TEST_CASE("a replicated expert's tokens are split evenly, to the token") {
  // Expert 0 is on both ranks: 5 tokens of rank 0 go 3 + 2, beginning on rank 0; those of rank 1
  // begin on rank 1.
  const ExpertPlacement placement{2, {{0, 1}, {1}}};
  const ByteMatrix bytes = dispatch_bytes(std::vector<std::int64_t>{5, 0, 5, 1}, placement, 1);
  CHECK(bytes.at(0, 0) == 3);
  CHECK(bytes.at(0, 1) == 2);
  CHECK(bytes.at(1, 0) == 2);
  CHECK(bytes.at(1, 1) == 3 + 1);
}

TEST_CASE("no token is lost or made up, wherever experts are") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int ranks = std::uniform_int_distribution<>(1, 9)(random);
    const int experts = ranks * std::uniform_int_distribution<>(1, 4)(random);
    const ExpertPlacement placement = replicated_experts(random_loads(random, experts), ranks, 2);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks * experts));
    for (std::int64_t& count : counts) count = std::uniform_int_distribution<>(0, 50)(random);
    const ByteMatrix bytes = dispatch_bytes(counts, placement, 7);
    for (int source = 0; source < ranks; ++source) {
      const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(source) * experts;
      const std::int64_t tokens = std::accumulate(begin, begin + experts, std::int64_t{0});
      const std::int64_t* const row = bytes.row(source);
      REQUIRE(std::accumulate(row, row + ranks, std::int64_t{0}) == 7 * tokens);
    }
  }
}

TEST_CASE("experts that cannot be placed are refused") {
  CHECK_THROWS_AS(contiguous_experts(5, 2), UsageError);
  CHECK_THROWS_AS(round_robin_experts(4, 0), UsageError);
  CHECK_THROWS_WITH(balanced_experts(Loads{1, 2, 3}, 2),
                    ContainsSubstring("3 experts cannot be shared out evenly over 2 ranks"));
  CHECK_THROWS_WITH(balanced_experts(Loads{1, -2}, 2), ContainsSubstring("expert 1"));
  CHECK_THROWS_AS(balanced_experts(Loads{std::numeric_limits<double>::quiet_NaN()}, 1), UsageError);
  CHECK_THROWS_AS(replicated_experts(Loads{1, 2}, 2, -1), UsageError);
  using Counts = std::vector<std::int64_t>;
  const ExpertPlacement two = contiguous_experts(2, 2);
  CHECK_THROWS_WITH(dispatch_bytes(Counts{1, 2, 3}, two, 1), ContainsSubstring("3 counts"));
  CHECK_THROWS_WITH(dispatch_bytes(Counts{1, 2, -3, 4}, two, 1),
                    ContainsSubstring("rank 1, expert 0: -3 tokens"));
  CHECK_THROWS_WITH(dispatch_bytes(Counts{1LL << 40, 0, 0, 0}, two, 1LL << 40),
                    ContainsSubstring("too many"));
}
