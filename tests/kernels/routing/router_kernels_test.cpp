#include <cmath>
#include <limits>
#include <random>

#include "kernels/routing/compare.hpp"
#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/kernels/routing/kernel_router.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::kernels::routing;
using kernels::simt::Turns;
using routing::CapacityScope;
using routing::FillOrder;
using routing::IrDuplicates;
using routing::Priority;
using routing::RouterConfig;
using routing::Weights;

namespace {

using Logits = std::vector<std::vector<float>>;

// levels > 0: so many values only, which makes ties; every 50th logit -inf.
Logits random_logits(int experts, const std::vector<int>& tokens, unsigned seed, int levels = 0) {
  std::mt19937 engine(seed);
  Logits logits;
  for (const int count : tokens) {
    std::vector<float> rows(static_cast<std::size_t>(count * experts));
    for (float& value : rows) {
      const double uniform = static_cast<double>(engine()) / 4294967296.0;
      value = static_cast<float>(levels > 0 ? std::floor(uniform * levels) - 1 : 4 * uniform - 2);
      if (engine() % 50 == 0) value = -std::numeric_limits<float>::infinity();
      if (engine() % 50 == 1) value = -0.0F;
    }
    logits.push_back(rows);
  }
  return logits;
}

RouterConfig make(const std::string& name, const std::string& factor) {
  RouterConfig config = routing::parse_router(name, 0);
  config.capacity_factor = Decimal::parse(factor, "factor");
  return config;
}

routing::RoutedGroup reference(const RouterConfig& config, int experts, const Logits& logits,
                               const routing::RouterContext& context) {
  std::vector<routing::RankLogits> ranks;
  for (const auto& rows : logits) {
    ranks.push_back({rows, static_cast<std::int64_t>(rows.size()) / experts});
  }
  return routing::route_group(config, experts, ranks, context);
}

void check_rows(const KernelRank& rank) {
  const RouterProblem& problem = rank.problem;
  const RouterBuffers& at = rank.buffers;
  for (int expert = 0; expert < problem.experts; ++expert) {
    for (std::int32_t slot = 0; slot < problem.capacity(); ++slot) {
      const std::int32_t route = at.row_route[std::int64_t{expert} * problem.capacity() + slot];
      REQUIRE((route >= 0) == (slot < at.kept_rows[expert]));
      if (route < 0) continue;
      const std::int64_t place =
          route % problem.choices() * problem.stride() + route / problem.choices();
      REQUIRE(at.expert[place] == expert);
      REQUIRE(at.slot[place] == slot);
    }
  }
}

// Routes by kernels and by the reference and requires the same bits.
void compare(const RouterConfig& config, int experts, const Logits& logits,
             const routing::RouterContext& context = {}, Turns turns = Turns::forward,
             int buffered_keys = -1, std::int64_t most_looks = RouterProblem().most_looks) {
  const auto ranks =
      route_by_kernels(config, experts, logits, context, turns, buffered_keys, most_looks);
  const routing::RoutedGroup expected = reference(config, experts, logits, context);
  std::vector<routing::Route> routes;
  for (const auto& rank : ranks) {
    const auto some = listed(rank->problem, rank->buffers);
    routes.insert(routes.end(), some.begin(), some.end());
    REQUIRE(*rank->buffers.invalid == 0);
    REQUIRE_THAT(wrong_ir_rows(rank->problem, rank->buffers), Catch::Matchers::Equals(""));
    if (config.capacity_scope == CapacityScope::group) continue;
    check_rows(*rank);
    for (int expert = 0; expert < experts; ++expert) {
      const int place = rank->problem.rank * experts + expert;
      REQUIRE(rank->buffers.kept_rows[expert] ==
              expected.kept_rows[static_cast<std::size_t>(place)]);
    }
  }
  INFO(config.name() << " E " << experts << " CF " << config.capacity_factor.text() << " "
                     << name_of(config.priority) << " " << name_of(config.capacity_scope) << " "
                     << name_of(config.fill_order) << " " << name_of(config.ir_duplicates));
  REQUIRE_THAT(difference(routes, expected.routes()), Catch::Matchers::Equals(""));
}

}  // namespace

TEST_CASE("kernels route as the reference does, under every option", "[slow]") {
  routing::RouterContext context;
  context.seed = 11;
  context.place = {4, 2};
  int compared = 0;
  for (const char* name : {"top1", "top2", "top3+fr", "top2+ir", "top2+fr+ir", "top1+fr+ir@node"}) {
    for (const auto priority :
         {Priority::token_max, Priority::own_score, Priority::position, Priority::random}) {
      for (const auto scope : {CapacityScope::source, CapacityScope::group}) {
        for (const auto order : {FillOrder::nominee_score, FillOrder::priority}) {
          for (const auto duplicates : {IrDuplicates::allow, IrDuplicates::exclude}) {
            RouterConfig config = make(name, compared % 3 == 0 ? "0.7" : "1.4");
            config.priority = priority;
            config.capacity_scope = scope;
            config.fill_order = order;
            config.ir_duplicates = duplicates;
            config.weights = static_cast<Weights>(compared % 3);
            const int levels = compared % 2 == 0 ? 4 : 0;
            compare(config, 8,
                    random_logits(8, {33, 0, 17, 70}, static_cast<unsigned>(compared), levels),
                    context, static_cast<Turns>(compared % 3));
            ++compared;
          }
        }
      }
    }
  }
  CHECK(compared == 6 * 4 * 2 * 2 * 2);
}

TEST_CASE("kernels route as the reference does, over tokens, experts and choices", "[slow]") {
  int compared = 0;
  for (const int experts : {1, 2, 5, 8, 9, 16, 24, 32, 40, 64, 100, 128, 256, 512}) {
    for (const int top_k : {1, 2, 4, 8, 9}) {
      const bool fill = compared % 2 == 1 && top_k < 9;
      if (top_k + (fill ? 1 : 0) > experts) continue;
      RouterConfig config = make("top" + std::to_string(top_k) + (fill ? "+fr" : "") + "+ir", "1");
      config.capacity_factor = Decimal::parse(compared % 3 == 0 ? "0.5" : "1.7", "factor");
      config.priority =
          std::vector<Priority>{Priority::token_max, Priority::own_score, Priority::position,
                                Priority::random}[static_cast<std::size_t>(compared % 4)];
      config.ir_duplicates = static_cast<IrDuplicates>(compared / 4 % 2);
      const int tokens =
          std::vector<int>{1, 31, 32, 65, 200}[static_cast<std::size_t>(compared % 5)];
      compare(config, experts,
              random_logits(experts, {tokens}, static_cast<unsigned>(compared), compared % 3), {},
              static_cast<Turns>(compared % 3));
      ++compared;
    }
  }
  CHECK(compared > 50);
}

TEST_CASE("kernels route many tokens through few slots") {
  // More words than a block of 64 threads has threads, and keys that differ in their last bits.
  int compared = 0;
  for (const auto priority :
       {Priority::token_max, Priority::own_score, Priority::position, Priority::random}) {
    for (const char* factor : {"0.3", "2", "1"}) {
      RouterConfig config = make(compared % 2 == 0 ? "top2+fr+ir" : "top2", factor);
      config.priority = priority;
      Logits logits = random_logits(4, {3000}, static_cast<unsigned>(compared), 0);
      for (std::size_t at = 0; at < logits[0].size(); at += 4) {
        logits[0][at] = 4 + static_cast<float>(at % 64) * 0x1p-20F;  // all want expert 0
      }
      compare(config, 4, logits);
      compare(config, 4, logits, {}, Turns::shuffled, 0);  // keys read again, never buffered
      // Some experts' routes fit, of others only those of the choice that is cut, of others none.
      compare(config, 4, logits, {}, Turns::backward, 1200);
      ++compared;
    }
  }
  CHECK(compared == 12);
}

TEST_CASE("kernels cut where many keys are nearly or quite equal") {
  // All but a few of 2000 keys fall in one bin of the first histogram, there in few bins, and there
  // tie: more than are compared with each other.
  for (const auto priority : {Priority::token_max, Priority::own_score, Priority::random}) {
    for (const char* factor : {"0.6", "0.97", "1.5"}) {
      RouterConfig config = make("top1+fr", factor);
      config.priority = priority;
      Logits logits = random_logits(2, {2000}, 7, 2);
      for (std::size_t token = 0; token < 2000; ++token) {
        const float spread = token % 97 == 0 ? 8.0F : static_cast<float>(token % 5) * 0x1p-21F;
        logits[0][2 * token] = 1 + spread;
        logits[0][2 * token + 1] = token % 3 == 0 ? 2.0F : -3.0F;
      }
      for (const auto turns : {Turns::forward, Turns::shuffled}) {
        compare(config, 2, logits, {}, turns);
      }
    }
  }
}

TEST_CASE("kernels route the same when all routes are sorted first") {
  int compared = 0;
  for (const int experts : {1, 7, 8, 64, 65, 256, 511, 512}) {
    for (const int tokens : {1, 31, 1024, 1025, 2500}) {
      if (tokens > 1025 && experts > 65) continue;
      const auto priority =
          std::vector<Priority>{Priority::token_max, Priority::own_score, Priority::position,
                                Priority::random}[static_cast<std::size_t>(compared % 4)];
      RouterConfig config = make(experts < 4         ? "top1"
                                 : compared % 2 == 0 ? "top3+fr"
                                                     : "top2",
                                 compared % 3 == 0 ? "50" : "0.8");
      config.priority = priority;
      const auto logits =
          random_logits(experts, {tokens}, static_cast<unsigned>(compared), compared % 3);
      const auto turns = static_cast<Turns>(compared % 3);
      compare(config, experts, logits, {}, turns, -1, 0);
      compare(config, experts, logits, {}, turns, tokens / 2, 0);  // some lists do not fit
      ++compared;
    }
  }
  CHECK(compared == 37);
}

TEST_CASE("equal logits go to the first experts, tokens in order") {
  for (const auto priority :
       {Priority::token_max, Priority::own_score, Priority::position, Priority::random}) {
    RouterConfig config = make("top2+fr+ir", "1.1");
    config.priority = priority;
    for (const float value : {0.0F, 3.0F, -std::numeric_limits<float>::infinity()}) {
      compare(config, 8, {std::vector<float>(8 * 77, value), std::vector<float>(8 * 40, value)});
    }
  }
}

TEST_CASE("no slots, more slots than tokens, no tokens") {
  for (const auto priority : {Priority::token_max, Priority::own_score, Priority::position}) {
    for (const char* factor : {"0", "50"}) {
      RouterConfig config = make("top2+fr+ir", factor);
      config.priority = priority;
      compare(config, 4, random_logits(4, {10, 0, 3, 40}, 5));
      config.min_capacity = 3;
      compare(config, 4, random_logits(4, {10, 0, 3, 40}, 6));
    }
  }
}

TEST_CASE("a token with NaN or +inf gets no expert, is counted, and disturbs no other") {
  const int experts = 8;
  for (const int lanes_case : {8, 16, 64}) {
    const int count = lanes_case == 8 ? experts : lanes_case;
    Logits logits = random_logits(count, {50}, 3);
    Logits without = logits;
    const std::vector<int> bad = {0, 17, 18, 49};
    for (std::size_t at = 0; at < bad.size(); ++at) {
      const auto place = static_cast<std::size_t>(bad[at] * count) + at;
      logits[0][place] = at == 1 ? std::numeric_limits<float>::infinity()
                                 : (at == 2 ? -1.0F : 1.0F) * std::nanf("");
    }
    for (std::size_t at = bad.size(); at-- > 0;) {
      const auto first = without[0].begin() + bad[at] * count;
      without[0].erase(first, first + count);
    }
    RouterConfig config = make("top2+fr+ir", "1.3");
    config.priority = Priority::own_score;  // keys that do not depend on a token's index
    auto broken = route_by_kernels(config, count, logits);
    // The capacity of 50 tokens for the 46 that are left.
    RouterConfig same = config;
    same.capacity_factor = Decimal(0);
    same.min_capacity = broken[0]->problem.capacity();
    auto expected = reference(same, count, without, {}).routes();
    const auto routes = listed(broken[0]->problem, broken[0]->buffers);
    std::vector<routing::Route> healthy;
    for (routing::Route route : routes) {
      const int before =
          static_cast<int>(std::lower_bound(bad.begin(), bad.end(), route.token) - bad.begin());
      if (std::find(bad.begin(), bad.end(), route.token) != bad.end()) {
        CHECK(route.expert == no_expert);
        CHECK(route.slot == slot_failed);
        CHECK(route.weight == 0);
        CHECK(route.kind != routing::RouteKind::ir);
        continue;
      }
      route.token -= before;
      healthy.push_back(route);
    }
    CHECK(*broken[0]->buffers.invalid == 4);
    CHECK_THAT(difference(healthy, expected), Catch::Matchers::Equals(""));
  }
}

TEST_CASE("a wrong weight, IR row or count of the kernels is found and named") {
  const RouterConfig config = make("top2+ir", "0.7");
  const Logits logits = random_logits(8, {64}, 5);
  const auto expected = reference(config, 8, logits, {}).routes();
  const auto rank = std::move(route_by_kernels(config, 8, logits)[0]);
  const RouterProblem& problem = rank->problem;
  const RouterBuffers& at = rank->buffers;
  REQUIRE_THAT(difference(listed(problem, at), expected), Catch::Matchers::Equals(""));
  REQUIRE(at.ir_begin[8] > 1);
  const int token = at.ir_row_token[1];
  const auto found_in = [](auto& value, auto wrong, auto&& check) {
    const auto right = value;
    value = wrong;
    std::string said = check();
    value = right;
    return said;
  };
  const auto routes = [&] { return difference(listed(problem, at), expected); };
  const auto rows = [&] { return wrong_ir_rows(problem, at); };
  CHECK_THAT(found_in(at.weight[3], std::nextafter(at.weight[3], 2.0F), routes),
             ContainsSubstring("token 3 choice 0"));
  CHECK_THAT(found_in(at.ir_weight[token], 2.0F, routes), ContainsSubstring("weight 2"));
  CHECK_THAT(found_in(at.ir_row[token], 0, rows), ContainsSubstring("has IR row 0"));
  CHECK_THAT(found_in(at.ir_row_token[1], token + 1, rows), ContainsSubstring("has IR row 1"));
  CHECK_THAT(found_in(at.ir_begin[8], 1, rows), ContainsSubstring("1 IR rows are counted"));
  CHECK_THAT(routes(), Catch::Matchers::Equals(""));
  CHECK_THAT(rows(), Catch::Matchers::Equals(""));
}

TEST_CASE("routes are sorted first where the experts would look at many") {
  RouterProblem problem;
  problem.config = make("top2", "1");
  problem.tokens = 16384;
  problem.experts = 64;
  CHECK_FALSE(problem.sorts_tiles());
  CHECK(assign_arguments(problem, carve(nullptr, problem)).tile_begin == nullptr);
  const auto small = buffer_bytes(problem);
  problem.config = make("top8", "1");
  problem.experts = 256;
  CHECK(problem.sorts_tiles());
  problem.most_listed = 100;
  CHECK(assign_arguments(problem, carve(nullptr, problem)).buffered_keys == 100);
  // 128 tiles, of 257 words and 1,024 tokens each.
  CHECK(buffer_bytes(problem) > small + 128 * (257 * 4 + 1024 * 2));
}

TEST_CASE("problems that the kernels cannot take are refused by name") {
  RouterProblem problem;
  problem.config = make("top2", "1");
  problem.tokens = 16;
  problem.experts = 8;
  problem.check();
  problem.experts = 1;
  CHECK_THROWS_WITH(problem.check(), ContainsSubstring("needs 2 different experts"));
  problem.experts = 513;
  CHECK_THROWS_WITH(problem.check(), ContainsSubstring("513 experts"));
  problem.experts = 8;
  problem.ranks = 3;
  CHECK_THROWS_WITH(problem.check(), ContainsSubstring("over 3 ranks"));
  problem.ranks = 1;
  problem.tokens = 2'000'000;
  CHECK_THROWS_WITH(problem.check(), ContainsSubstring("split the batch"));
  problem.tokens = 16;
  problem.config = routing::parse_router("dense", 0);
  CHECK_THROWS_WITH(problem.check(), ContainsSubstring("dense"));
}

TEST_CASE("kernels route 16384 tokens to 64 experts", "[slow]") {
  RouterConfig config = make("top2+fr+ir", "1.9");
  compare(config, 64, random_logits(64, {16384}, 21));
  config.priority = Priority::own_score;
  compare(config, 64, random_logits(64, {16384}, 22, 6));
}
