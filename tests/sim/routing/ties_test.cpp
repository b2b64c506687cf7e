// Routers and kernels against plain sorts by the same g, where equal scores abound.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/tokens/softmax.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_logits.hpp"

using namespace moesim;
using namespace moesim::routing;
using test::Logits;
using test::random_logits;
using test::spans;

namespace {

using RouteSet = std::set<std::tuple<int, int, int>>;  // rank, token, expert

RouteSet routes_of(const RouterConfig& config, int experts, const Logits& logits, SimdLevel level) {
  GroupRouter router(config, experts, static_cast<int>(logits.size()), level);
  RouteSet routes;
  for (const Route& one : router.route(spans(logits, experts)).routes()) {
    if (one.slot >= 0 || !config.has_capacity()) routes.emplace(one.rank, one.token, one.expert);
  }
  return routes;
}

std::vector<float> softmax_of(const float* logits, int experts) {
  std::vector<float> g(static_cast<std::size_t>(experts)), scratch(g.size());
  REQUIRE(softmax(logits, experts, g.data(), scratch.data()));
  return g;
}

std::vector<int> numbers(int count) {
  std::vector<int> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// The first `count` of `list`, largest value first, in the order given among equals.
template <typename Value>
std::vector<int> best_of(std::vector<int> list, int count, const Value& value) {
  std::stable_sort(list.begin(), list.end(),
                   [&](int one, int other) { return value(one) > value(other); });
  list.resize(std::min(list.size(), static_cast<std::size_t>(count)));
  return list;
}

std::vector<int> group_limited(const RouterConfig& config, const float* logits, int experts) {
  const std::vector<float> g = softmax_of(logits, experts);
  const int per_group = experts / config.groups;
  std::vector<float> score;
  for (int group = 0; group < config.groups; ++group) {
    std::vector<float> own(g.begin() + group * per_group, g.begin() + (group + 1) * per_group);
    std::sort(own.rbegin(), own.rend());
    const bool two = config.group_score == GroupScore::top2 && per_group > 1;
    score.push_back(two ? own[0] + own[1] : own[0]);
  }
  std::vector<int> kept = best_of(numbers(config.groups), config.kept_groups, [&](int group) {
    return score[static_cast<std::size_t>(group)];
  });
  std::sort(kept.begin(), kept.end());
  std::vector<int> offered;
  for (const int group : kept) {
    for (int at = 0; at < per_group; ++at) offered.push_back(group * per_group + at);
  }
  return best_of(offered, config.top_k, [&](int expert) { return logits[expert]; });
}

}  // namespace

// Lists of 5 and more among 96 experts and more take another way than short ones: through a bound,
// which equal and missing logits defeat.
TEST_CASE("the largest logits of a tile are those of a stable sort", "[routing]") {
  const int experts = GENERATE(64, 96, 131, 256);
  const int choices = GENERATE(2, 5, 8, 9, 12);
  const int first = GENERATE(0, 3);
  constexpr float infinite = std::numeric_limits<float>::infinity();
  std::mt19937 random(static_cast<unsigned>(experts * 100 + choices + first));
  std::normal_distribution<float> normal;
  std::vector<float> tile(static_cast<std::size_t>(experts) * tile_tokens);
  for (std::size_t at = 0; at < tile.size(); ++at) {
    const auto expert = static_cast<int>(at / tile_tokens);
    const float value = normal(random);
    switch (at % tile_tokens) {
      case 0:
        tile[at] = 0;
        break;  // all equal
      case 1:
        tile[at] = -infinite;
        break;  // none finite
      case 2:
        tile[at] = expert % 40 == 7 ? value : -infinite;
        break;  // few finite
      case 3:
        tile[at] = std::round(value);
        break;  // many equal
      case 4:
        tile[at] = expert / 8 == 4 ? 10 + value : value;
        break;  // the best in one block
      case 5:
        tile[at] = static_cast<float>(expert);
        break;
      case 6:
        tile[at] = static_cast<float>(-expert);
        break;
      default:
        tile[at] = value;
    }
  }
  std::vector<int> offered = numbers(experts);
  offered.erase(offered.begin(), offered.begin() + first);
  const std::size_t size = static_cast<std::size_t>(choices) * tile_tokens;
  for (const SimdLevel level : available_simd_levels()) {
    std::vector<std::uint16_t> expert(size);
    std::vector<float> logit(size);
    tile_kernels(level).largest(tile.data(), first, experts, choices,
                                {expert.data(), logit.data(), tile_tokens});
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      const auto value = [&](int of) {
        return tile[static_cast<std::size_t>(of) * tile_tokens + token];
      };
      const std::vector<int> best = best_of(offered, choices, value);
      for (std::size_t choice = 0; choice < best.size(); ++choice) {
        const std::size_t at = choice * tile_tokens + token;
        CAPTURE(name_of(level), token, choice);
        REQUIRE(expert[at] == best[choice]);
        REQUIRE(logit[at] == value(best[choice]));
      }
    }
  }
}

// Groups with a bound of their own; the values are whole, so that many are equal, also to the
// bound.
TEST_CASE("the largest of those that reach a bound are those of a stable sort", "[routing]") {
  const int groups = 8;
  const int per_group = GENERATE(7, 16, 32);
  const int choices = GENERATE(4, 6, 8);
  const int steps =
      GENERATE(2, 1000);  // of the values: with 2 more reach the bound than are listed
  constexpr float infinite = std::numeric_limits<float>::infinity();
  std::mt19937 random(static_cast<unsigned>(per_group * 100 + choices + steps));
  const auto size = static_cast<std::size_t>(groups * per_group) * tile_tokens;
  std::vector<float> tile(size);
  for (float& value : tile) value = static_cast<float>(random() % static_cast<unsigned>(steps));
  // A token has every second group, from its own number on; the bound is the least of the two best
  // of each of these.
  std::vector<float> bounds(std::size_t{groups} * tile_tokens, infinite);
  const auto is_kept = [](int group, std::size_t token) {
    return (static_cast<std::size_t>(group) + token) % 2 == 0;
  };
  const auto value_of = [&](int expert, std::size_t token) {
    return tile[static_cast<std::size_t>(expert) * tile_tokens + token];
  };
  for (std::size_t token = 0; token < tile_tokens; ++token) {
    float least = infinite;
    for (int group = 0; group < groups; ++group) {
      if (!is_kept(group, token)) continue;
      std::vector<float> own;
      for (int at = 0; at < per_group; ++at) own.push_back(value_of(group * per_group + at, token));
      std::sort(own.rbegin(), own.rend());
      least = std::min(least, own[1]);
    }
    for (int group = 0; group < groups; ++group) {
      if (is_kept(group, token))
        bounds[static_cast<std::size_t>(group) * tile_tokens + token] = least;
    }
  }
  for (const SimdLevel level : available_simd_levels()) {
    std::vector<std::uint16_t> expert(static_cast<std::size_t>(choices) * tile_tokens);
    std::vector<float> value(expert.size());
    REQUIRE(tile_kernels(level).largest_reaching(tile.data(), groups, per_group, bounds.data(),
                                                 choices,
                                                 {expert.data(), value.data(), tile_tokens}));
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      std::vector<int> offered;
      for (const int one : numbers(groups * per_group)) {
        if (is_kept(one / per_group, token)) offered.push_back(one);
      }
      const std::vector<int> best =
          best_of(offered, choices, [&](int one) { return value_of(one, token); });
      for (std::size_t choice = 0; choice < best.size(); ++choice) {
        CAPTURE(name_of(level), token, choice);
        REQUIRE(expert[choice * tile_tokens + token] == best[choice]);
        REQUIRE(value[choice * tile_tokens + token] == value_of(best[choice], token));
      }
    }
  }
}

TEST_CASE("a token is kept where its place is below its expert's limit", "[routing]") {
  const int experts = GENERATE(1, 8, 16, 17, 32, 33, 64);
  constexpr std::size_t tokens = 203;  // not whole registers
  std::mt19937 random(static_cast<unsigned>(experts));
  std::vector<std::int32_t> limit(static_cast<std::size_t>(experts));
  for (std::int32_t& one : limit) one = static_cast<std::int32_t>(random() % 20);
  std::vector<std::int32_t> place(tokens);
  std::vector<std::uint16_t> expert(tokens);
  for (std::size_t token = 0; token < tokens; ++token) {
    place[token] = static_cast<std::int32_t>(random() % 20);
    expert[token] = static_cast<std::uint16_t>(random() % static_cast<unsigned>(experts));
  }
  for (const SimdLevel level : available_simd_levels()) {
    std::vector<std::uint8_t> keep(tokens + 1, 7);
    tile_kernels(level).flag_places({tokens, place.data(), expert.data()}, limit.data(), experts,
                                    keep.data());
    CHECK(keep.back() == 7);
    for (std::size_t token = 0; token < tokens; ++token) {
      CAPTURE(name_of(level), token);
      REQUIRE(keep[token] == (place[token] < limit[expert[token]] ? 1 : 0));
    }
  }
}

TEST_CASE("the largest places of a column are those of a stable sort", "[routing]") {
  std::mt19937 engine(1);
  for (const std::size_t count : {1U, 15U, 16U, 17U, 63U, 64U, 65U, 100U, 1000U, 2048U, 4093U}) {
    for (const int values : {1, 2, 5, 300, 1000000}) {  // how many different ones
      std::vector<float> column(count + tile_tokens, 0.0F);
      for (std::size_t at = 0; at < count; ++at) {
        column[at] = static_cast<float>(engine() % static_cast<unsigned>(values)) /
                     static_cast<float>(std::max(1, values - 1));    // 0 and 1 among them
        if (values == 300) column[at] = std::exp(-90 * column[at]);  // many binades
      }
      for (const std::size_t wanted : {std::size_t{0}, std::size_t{1}, count / 64, count / 20,
                                       count / 9, count / 3, count - 1, count}) {
        const auto value_at = [&](int at) { return column[static_cast<std::size_t>(at)]; };
        std::vector<int> expected =
            best_of(numbers(static_cast<int>(count)), static_cast<int>(wanted), value_at);
        std::sort(expected.begin(), expected.end());
        for (const SimdLevel level : available_simd_levels()) {
          CAPTURE(count, values, wanted, name_of(level));
          std::vector<std::uint32_t> places(count + 64);
          std::vector<float> taken(count + 64);
          const Cut cut = tile_kernels(level).largest_places(column.data(), count, wanted,
                                                             places.data(), taken.data());
          places.resize(wanted);
          CHECK(std::equal(places.begin(), places.end(), expected.begin(), expected.end(),
                           [](std::uint32_t one, int other) {
                             return one == static_cast<std::uint32_t>(other);
                           }));
          std::vector<int> cut_out;
          for (std::size_t at = 0; at < count; ++at) {
            if (cut.takes(column[at], at)) cut_out.push_back(static_cast<int>(at));
          }
          CHECK(cut_out == expected);
          for (std::size_t at = 0; at < wanted; ++at) CHECK(taken[at] == value_at(expected[at]));
          if (wanted == count) continue;
          const Cut same = tile_kernels(level).find_cut(column.data(), count, wanted);
          bool all = true;
          for (std::size_t at = 0; at < count; ++at) {
            all = all && same.takes(column[at], at) == cut.takes(column[at], at);
          }
          CHECK(all);
        }
      }
    }
  }
}

TEST_CASE("expert-choice takes the lower of equal tokens at every instruction set", "[routing]") {
  for (const char* factor : {"0.4", "1", "2.5"}) {
    for (const int levels : {1, 2, 3, 0}) {
      const int experts = 6;
      const Logits logits = random_logits(experts, {71, 0, 130}, 7, levels);
      RouterConfig config = parse_router("expert-choice", 2);
      config.capacity_factor = Decimal::parse(factor, "factor");
      RouteSet expected;
      for (int rank = 0; rank < 3; ++rank) {
        const auto& rows = logits[static_cast<std::size_t>(rank)];
        const int tokens = static_cast<int>(rows.size()) / experts;
        std::vector<std::vector<float>> g;
        for (int token = 0; token < tokens; ++token) {
          g.push_back(softmax_of(rows.data() + token * experts, experts));
        }
        const auto slots = static_cast<int>(config.capacity(tokens, experts));
        for (int expert = 0; expert < experts; ++expert) {
          for (const int token : best_of(numbers(tokens), slots, [&](int at) {
                 return g[static_cast<std::size_t>(at)][static_cast<std::size_t>(expert)];
               })) {
            expected.emplace(rank, token, expert);
          }
        }
      }
      for (const SimdLevel level : available_simd_levels()) {
        CHECK(routes_of(config, experts, logits, level) == expected);
      }
    }
  }
}

TEST_CASE("group-limited: equal groups, equal experts and too few finite ones", "[routing]") {
  const GroupScore score = GENERATE(GroupScore::max, GroupScore::top2);
  // Different logits have the same g where they differ by less than its rounding, and where all but
  // the first expert's are so low that g is 0.
  const float scale = GENERATE(1.0F, 1e-7F, 1e-5F);
  const float first_ahead = GENERATE(0.0F, 25.0F, 110.0F);
  // Experts, groups, kept groups, k: lists shorter than k, as long as the group, and longer than
  // what is held in registers.
  const int shapes[][4] = {
      {12, 4, 2, 3}, {16, 8, 3, 5}, {8, 8, 4, 3}, {64, 4, 2, 12}, {6, 1, 1, 1}};
  for (const auto& [experts, groups, kept, top_k] : shapes) {
    for (const int levels : {1, 2, 3, 0}) {
      Logits logits = random_logits(experts, {37, 64}, 3, levels);
      for (auto& rows : logits) {
        for (std::size_t at = 0; at < rows.size(); ++at) {
          rows[at] *= scale;
          if (at % static_cast<std::size_t>(experts) == 0) rows[at] += first_ahead;
        }
      }
      for (std::size_t token = 0; token < 37; token += 3) {  // all but one to three are -inf
        for (std::size_t expert = 1 + token % 3; expert < static_cast<std::size_t>(experts);
             ++expert) {
          logits[0][token * static_cast<std::size_t>(experts) +
                    expert * 5 % static_cast<std::size_t>(experts)] =
              -std::numeric_limits<float>::infinity();
        }
      }
      RouterConfig config = parse_router("group-limited:1:1", top_k);
      config.group_score = score;
      config.groups = groups;
      config.kept_groups = kept;
      RouteSet expected;
      for (int rank = 0; rank < 2; ++rank) {
        const auto& rows = logits[static_cast<std::size_t>(rank)];
        for (int token = 0; token < static_cast<int>(rows.size()) / experts; ++token) {
          for (const int expert : group_limited(config, rows.data() + token * experts, experts)) {
            expected.emplace(rank, token, expert);
          }
        }
      }
      for (const SimdLevel level : available_simd_levels()) {
        CHECK(routes_of(config, experts, logits, level) == expected);
      }
    }
  }
}
