#include "sim/routing/groups/balanced_assignment.hpp"

#include <algorithm>
#include <limits>
#include <random>

#include "tests/support/catch.hpp"

using moesim::routing::BalancedAssignment;

namespace {

constexpr std::int64_t units = 64;  // scores are multiples of 1 / 64, so that sums are exact

std::vector<float> random_scores(int tokens, int experts, unsigned seed, int range, int skew) {
  std::mt19937 engine(seed);
  std::vector<float> scores;
  for (int token = 0; token < tokens; ++token) {
    for (int expert = 0; expert < experts; ++expert) {
      const auto noise = static_cast<int>(engine() % static_cast<unsigned>(range));
      scores.push_back(static_cast<float>(noise - skew * expert) / units);
    }
  }
  return scores;
}

std::int64_t in_units(float score) { return static_cast<std::int64_t>(score * units); }

std::int64_t sum_of(const std::vector<float>& scores, const std::vector<std::uint16_t>& assigned,
                    int experts) {
  std::int64_t sum = 0;
  for (std::size_t token = 0; token < assigned.size(); ++token) {
    sum += in_units(scores[token * static_cast<std::size_t>(experts) + assigned[token]]);
  }
  return sum;
}

// The best sum by trying every balanced assignment: next_permutation over the multiset.
std::int64_t best_sum(const std::vector<float>& scores, int tokens, int experts) {
  std::vector<std::uint16_t> assigned;
  for (int token = 0; token < tokens; ++token) {
    assigned.push_back(static_cast<std::uint16_t>(token / (tokens / experts)));
  }
  std::int64_t best = std::numeric_limits<std::int64_t>::min();
  do {
    best = std::max(best, sum_of(scores, assigned, experts));
  } while (std::next_permutation(assigned.begin(), assigned.end()));
  return best;
}

void check_balanced(const std::vector<std::uint16_t>& assigned, int experts) {
  for (int expert = 0; expert < experts; ++expert) {
    CHECK(std::count(assigned.begin(), assigned.end(), expert) ==
          static_cast<std::ptrdiff_t>(assigned.size()) / experts);
  }
}

// A balanced assignment is the best if and only if no cycle of moves between experts gains
// (Klein 1967): no negative cycle where an edge costs what the cheapest token loses by moving.
bool can_improve(const std::vector<float>& scores, const std::vector<std::uint16_t>& assigned,
                 std::size_t experts) {
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max() / 4;
  std::vector<std::int64_t> cost(experts * experts, none);
  for (std::size_t token = 0; token < assigned.size(); ++token) {
    const float* row = scores.data() + token * experts;
    const std::size_t from = assigned[token];
    for (std::size_t to = 0; to < experts; ++to) {
      std::int64_t& edge = cost[from * experts + to];
      edge = std::min(edge, in_units(row[from]) - in_units(row[to]));
    }
  }
  for (std::size_t via = 0; via < experts; ++via) {  // Floyd and Warshall
    for (std::size_t from = 0; from < experts; ++from) {
      for (std::size_t to = 0; to < experts; ++to) {
        std::int64_t& edge = cost[from * experts + to];
        edge = std::min(edge, cost[from * experts + via] + cost[via * experts + to]);
      }
    }
  }
  for (std::size_t expert = 0; expert < experts; ++expert) {
    if (cost[expert * experts + expert] < 0) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a balanced assignment has the largest sum of all") {
  BalancedAssignment assignment;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const int experts = 2 + static_cast<int>(seed % 3);  // at most 8! / (2!)^4 = 2,520 assignments
    const int tokens = experts == 3 ? 6 : 8;
    // Few levels make ties; a skew makes one expert the best of nearly all tokens.
    const std::vector<float> scores =
        random_scores(tokens, experts, seed, seed % 2 == 0 ? 5 : 1000, seed % 5 == 0 ? 40 : 0);
    const auto& assigned = assignment.assign(scores, experts);
    check_balanced(assigned, experts);
    CHECK(sum_of(scores, assigned, experts) == best_sum(scores, tokens, experts));
  }
}

TEST_CASE("no cycle of moves improves a large balanced assignment") {
  BalancedAssignment assignment;
  for (const int skew : {0, 3, 60}) {
    const int experts = 16;
    const std::vector<float> scores = random_scores(1024, experts, 7, 256, skew);
    const std::vector<std::uint16_t> assigned = assignment.assign(scores, experts);
    check_balanced(assigned, experts);
    CHECK_FALSE(can_improve(scores, assigned, experts));
    // The test sees what is not the best: two tokens of different experts that swap.
    std::vector<std::uint16_t> swapped = assigned;
    const auto other = std::find_if(swapped.begin(), swapped.end(),
                                    [&](std::uint16_t expert) { return expert != swapped[0]; });
    std::swap(swapped[0], *other);
    CHECK(can_improve(scores, swapped, experts) ==
          (sum_of(scores, swapped, experts) < sum_of(scores, assigned, experts)));
  }
}

TEST_CASE("equal scores, -inf and no tokens are assigned all the same") {
  BalancedAssignment assignment;
  check_balanced(assignment.assign(std::vector<float>(36, 1.0F), 3), 3);
  CHECK(assignment.assign(std::vector<float>{}, 3).empty());
  // Both tokens would like expert 0; token 1 cannot go to expert 1 without taking a -inf.
  const float never = -std::numeric_limits<float>::infinity();
  CHECK(assignment.assign(std::vector<float>{9, 1, 2, never}, 2) ==
        std::vector<std::uint16_t>{1, 0});
}
