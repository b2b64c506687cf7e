#include "sim/routing/rules/dialect.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RouterConfig make(Dialect dialect, int top_k, const std::string& factor) {
  RouterConfig config = parse_router("topk", top_k);
  apply_dialect(dialect, config);
  config.second_expert = SecondExpert::best;  // DeepSpeed samples it: library_rules_test.cpp
  config.capacity_factor = Decimal::parse(factor, "factor");
  return config;
}

std::int64_t capacity(Dialect dialect, int top_k, const std::string& factor, std::int64_t tokens,
                      std::int64_t experts) {
  return make(dialect, top_k, factor).capacity(tokens, experts);
}

// The experts of the primary routes that are kept, [token], as bits.
std::vector<unsigned> kept(const RouterConfig& config, int experts,
                           const std::vector<float>& logits) {
  const auto tokens = static_cast<std::int64_t>(logits.size()) / experts;
  const std::vector<RankLogits> ranks{{logits, tokens}};
  std::vector<unsigned> result(static_cast<std::size_t>(tokens), 0);
  for (const Route& route : route_group(config, experts, ranks).routes()) {
    if (route.slot >= 0) result[static_cast<std::size_t>(route.token)] |= 1U << route.expert;
  }
  return result;
}

float weight_of(const RouterConfig& config, int experts, const std::vector<float>& logits,
                int token, int expert) {
  const auto tokens = static_cast<std::int64_t>(logits.size()) / experts;
  const std::vector<RankLogits> ranks{{logits, tokens}};
  for (const Route& route : route_group(config, experts, ranks).routes()) {
    if (route.token == token && route.expert == expert) return route.weight;
  }
  return -1;
}

}  // namespace

TEST_CASE("capacity is rounded as each library rounds it") {
  // 375 * 2.2: 825 exactly; 825.0000000000001 in fp64; 825 in fp32, whose step there is 6e-5.
  CHECK(capacity(Dialect::paper, 1, "2.2", 3000, 8) == 825);
  CHECK(capacity(Dialect::deepspeed, 1, "2.2", 3000, 8) == 825);
  CHECK(capacity(Dialect::megatron, 1, "2.2", 3000, 8) == 826);
  CHECK(capacity(Dialect::tutel, 1, "2.2", 3000, 8) == 825);
  CHECK(capacity(Dialect::switch_transformer, 1, "2.2", 3000, 8) == 825);
  // 1001 / 8 * 1.1 = 137.6: up; Tutel's 126 * 1.1 = 138.6 down; Switch down.
  CHECK(capacity(Dialect::paper, 1, "1.1", 1001, 8) == 138);
  CHECK(capacity(Dialect::deepspeed, 1, "1.1", 1001, 8) == 138);
  CHECK(capacity(Dialect::megatron, 1, "1.1", 1001, 8) == 138);
  CHECK(capacity(Dialect::tutel, 1, "1.1", 1001, 8) == 138);
  CHECK(capacity(Dialect::switch_transformer, 1, "1.1", 1001, 8) == 137);
  // k = 2: 1001 * 2 / 8 * 1.25 = 312.8 up; Tutel 2 * int(126 * 1.25) = 2 * 157; Switch does not
  // multiply by k: 156.4 down.
  CHECK(capacity(Dialect::deepspeed, 2, "1.25", 1001, 8) == 313);
  CHECK(capacity(Dialect::megatron, 2, "1.25", 1001, 8) == 313);
  CHECK(capacity(Dialect::tutel, 2, "1.25", 1001, 8) == 314);
  CHECK(capacity(Dialect::switch_transformer, 2, "1.25", 1001, 8) == 156);
  // MegaBlocks multiplies by k and rounds down: 312.8; 375 * 2.2 = 825.0000000000001 in fp64.
  CHECK(capacity(Dialect::megablocks, 2, "1.25", 1001, 8) == 312);
  CHECK(capacity(Dialect::megablocks, 1, "2.2", 3000, 8) == 825);
}

TEST_CASE("the least capacity of each library") {
  // 8 tokens over 8 experts: 1 by the capacity factor.
  CHECK(capacity(Dialect::paper, 1, "1", 8, 8) == 1);
  CHECK(capacity(Dialect::deepspeed, 1, "1", 8, 8) == 4);
  CHECK(capacity(Dialect::megatron, 1, "1", 8, 8) == 1);
  CHECK(capacity(Dialect::tutel, 1, "1", 8, 8) == 1);
  CHECK(capacity(Dialect::switch_transformer, 1, "1", 8, 8) == 4);
  // Switch lets no expert have more slots than there are tokens; its least capacity comes after.
  CHECK(capacity(Dialect::switch_transformer, 1, "100", 64, 8) == 64);
  CHECK(capacity(Dialect::switch_transformer, 1, "100", 2, 8) == 4);
  CHECK(capacity(Dialect::deepspeed, 1, "100", 64, 8) == 800);
}

TEST_CASE("a dialect has one convention of capacity factors") {
  RouterConfig config = make(Dialect::megatron, 2, "1");
  config.capacity_convention = CapacityConvention::paper;
  CHECK_THROWS_WITH(config.capacity(64, 8),
                    ContainsSubstring("megatron") && ContainsSubstring("library (times k)"));
  config = make(Dialect::switch_transformer, 1, "1");
  config.capacity_convention = CapacityConvention::library;
  CHECK_THROWS_AS(config.capacity(64, 8), UsageError);
}

TEST_CASE("who is dropped by each dialect, by hand") {
  // Four tokens, three experts, k = 2; all of them choose expert 0, first or second. Logits as
  // log-probabilities: g of experts (0, 1, 2).
  //   token 0: .50 .45 .05   first 0, second 1; 0's share of the two .526
  //   token 1: .45 .10 .45   tie: first 0 (the lower index), second 2; share .5
  //   token 2: .40 .55 .05   first 1, second 0; share .421
  //   token 3: .48 .02 .50   first 2, second 0; share .490
  const std::vector<float> g{.50F, .45F, .05F, .45F, .10F, .45F,
                             .40F, .55F, .05F, .48F, .02F, .50F};
  std::vector<float> logits;
  for (const float value : g) logits.push_back(std::log(value));
  const auto routed = [&](Dialect dialect, int slots) {
    RouterConfig config = make(dialect, 2, "0");
    config.min_capacity = slots;  // a factor of 0: capacity by hand
    return kept(config, 3, logits);
  };
  // Expert 0 has two slots, 1 and 2 have two each, enough for theirs. By position and by
  // token-max: both first choices of 0 stay, tokens 2 and 3 lose it.
  CHECK(routed(Dialect::tutel, 2) == std::vector<unsigned>{3, 5, 2, 4});
  CHECK(routed(Dialect::deepspeed, 2) == std::vector<unsigned>{3, 5, 2, 4});
  CHECK(routed(Dialect::switch_transformer, 2) == std::vector<unsigned>{3, 5, 2, 4});
  // Megatron by the share: .526 and .5 stay; the same tokens here.
  CHECK(routed(Dialect::megatron, 2) == std::vector<unsigned>{3, 5, 2, 4});
  // DeepSpeed with k > 2 by g itself: .50 and .48 stay, although token 3 has expert 0 second.
  RouterConfig own = make(Dialect::paper, 2, "0");
  own.priority = Priority::own_score;
  own.min_capacity = 2;
  CHECK(kept(own, 3, logits) == std::vector<unsigned>{3, 4, 2, 5});
  // With three slots Megatron adds the share .490, by position token 2 comes before.
  CHECK(routed(Dialect::megatron, 3) == std::vector<unsigned>{3, 5, 2, 5});
  CHECK(routed(Dialect::tutel, 3) == std::vector<unsigned>{3, 5, 3, 4});
}

TEST_CASE("weights of what is kept by each dialect") {
  // One token is dropped by expert 0, which has one slot: both choose it first.
  //   token 0: .6 .3 .1, token 1: .5 .1 .4
  std::vector<float> logits;
  for (const float value : {.6F, .3F, .1F, .5F, .1F, .4F}) logits.push_back(std::log(value));
  const auto weight = [&](Dialect dialect, int token, int expert) {
    RouterConfig config = make(dialect, 2, "0");
    config.min_capacity = 1;
    return weight_of(config, 3, logits, token, expert);
  };
  // Token 0 keeps both: .6 of .9. Token 1 keeps expert 2 only: 1 over what is kept, .4 of .9 before
  // drops, .4 plain (MegaBlocks).
  CHECK(weight(Dialect::deepspeed, 0, 0) == Approx(.6 / .9));
  CHECK(weight(Dialect::deepspeed, 1, 2) == Approx(1));
  CHECK(weight(Dialect::megatron, 1, 2) == Approx(.4 / .9));
  CHECK(weight(Dialect::tutel, 1, 2) == Approx(.4 / .9));
  CHECK(weight(Dialect::switch_transformer, 1, 2) == Approx(.4 / .9));
  CHECK(weight(Dialect::megablocks, 1, 2) == Approx(.4));
  CHECK(weight(Dialect::deepspeed, 1, 0) == 0);
  // k = 1: plain g everywhere but in the paper.
  for (const Dialect dialect :
       {Dialect::deepspeed, Dialect::megatron, Dialect::tutel, Dialect::switch_transformer}) {
    RouterConfig config = make(dialect, 1, "3");
    CHECK(weight_of(config, 3, logits, 0, 0) == Approx(.6));
  }
  CHECK(weight_of(make(Dialect::paper, 1, "3"), 3, logits, 0, 0) == Approx(1));
}

TEST_CASE("the choices of DeepSpeed and Megatron depend on k") {
  RouterConfig two = parse_router("top2", 0);
  apply_dialect(Dialect::deepspeed, two);
  CHECK(two.second_expert == SecondExpert::sampled);
  CHECK(make(Dialect::deepspeed, 1, "1").priority == Priority::random);
  CHECK(make(Dialect::deepspeed, 2, "1").priority == Priority::position);
  CHECK(make(Dialect::deepspeed, 4, "1").priority == Priority::own_score);
  CHECK(make(Dialect::megatron, 1, "1").priority == Priority::own_score);
  CHECK(make(Dialect::megatron, 8, "1").priority == Priority::own_weight);
  CHECK(make(Dialect::megablocks, 2, "1").priority == Priority::token_order);
  CHECK(make(Dialect::megablocks, 2, "1").weights == Weights::raw);
  CHECK_FALSE(make(Dialect::megablocks, 2, "1").pads_exchange());
  CHECK_FALSE(make(Dialect::megatron, 2, "1").pads_exchange());
  CHECK(make(Dialect::tutel, 2, "1").pads_exchange());
}
