#include "sim/routing/groups/group_router.hpp"

#include <cmath>
#include <limits>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/sim/routing/naive_router.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_logits.hpp"

using namespace moesim;
using namespace moesim::routing;
using test::Logits;
using test::random_logits;
using test::spans;

namespace {

RoutedGroup route(const RouterConfig& config, int experts, const Logits& logits,
                  const RouterContext& context = {}) {
  return route_group(config, experts, spans(logits, experts), context);
}

RouterConfig make(const std::string& name, const std::string& factor) {
  RouterConfig config = parse_router(name, 0);
  config.capacity_factor = Decimal::parse(factor, "factor");
  return config;
}

// The slots of choice `choice` over the tokens of a one-rank group.
std::vector<int> slots(const RoutedGroup& group, int choice) {
  const auto begin = group.slot.begin() + static_cast<std::ptrdiff_t>(choice) *
                                              static_cast<std::ptrdiff_t>(group.stride);
  return {begin, begin + static_cast<std::ptrdiff_t>(group.tokens)};
}

std::vector<int> experts_of(const RoutedGroup& group, int choice) {
  const auto begin = group.expert.begin() + static_cast<std::ptrdiff_t>(choice) *
                                                static_cast<std::ptrdiff_t>(group.stride);
  return {begin, begin + static_cast<std::ptrdiff_t>(group.tokens)};
}

// Logits with which a token prefers expert `first`, then `second`, of three, the surer the larger
// `margin`.
std::vector<float> prefers(int first, int second, float margin) {
  std::vector<float> row(3, 0.0F);
  row[static_cast<std::size_t>(first)] = 2 * margin;
  row[static_cast<std::size_t>(second)] = margin;
  return row;
}

std::vector<float> join(const std::vector<std::vector<float>>& rows) {
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

void compare_losses(const TokenLoss& fast, const TokenLoss& plain) {
  const auto near = [](double value) { return Approx(value).margin(2e-6); };
  CHECK(fast.failed == Approx(plain.failed).margin(1e-12));
  CHECK(fast.partial == Approx(plain.partial).margin(1e-12));
  CHECK(fast.unrouted == Approx(plain.unrouted).margin(1e-12));
  CHECK(fast.padded == Approx(plain.padded).margin(1e-12));
  CHECK(fast.lost_mass == near(plain.lost_mass));
  CHECK(fast.residual_loss == near(plain.residual_loss));
  REQUIRE(fast.fill_failed.has_value() == plain.fill_failed.has_value());
  REQUIRE(fast.failed_attempted.has_value() == plain.failed_attempted.has_value());
  REQUIRE(fast.duplicate_ir.has_value() == plain.duplicate_ir.has_value());
  if (plain.fill_failed) CHECK(*fast.fill_failed == Approx(*plain.fill_failed).margin(1e-12));
  if (plain.failed_attempted) {
    CHECK(*fast.failed_attempted == Approx(*plain.failed_attempted).margin(1e-12));
  }
  if (plain.duplicate_ir) CHECK(*fast.duplicate_ir == Approx(*plain.duplicate_ir).margin(1e-12));
}

}  // namespace

TEST_CASE("the router agrees with the rules written out, under every option") {
  const int experts = 8;
  RouterContext context;
  context.seed = 11;
  context.place = {4, 2};  // ranks 0, 1 are one domain, ranks 2, 3 the next
  int compared = 0;
  for (const char* name : {"top1", "top2", "top3+fr", "top2+ir", "top2+fr+ir", "top1+fr+ir@node"}) {
    for (const auto priority : {Priority::token_max, Priority::own_score, Priority::position,
                                Priority::token_order, Priority::random}) {
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
            const Logits logits =
                random_logits(experts, {33, 0, 17, 40}, static_cast<unsigned>(compared), levels);
            const RoutedGroup fast = route(config, experts, logits, context);
            const naive::Router plain(config, experts, logits, context);
            INFO(config.name() << " " << name_of(priority) << " " << name_of(scope) << " "
                               << name_of(order) << " " << name_of(duplicates));
            const std::vector<Route> expected = plain.routes();
            REQUIRE(fast.routes().size() == expected.size());
            REQUIRE(fast.routes() == expected);
            compare_losses(fast.loss, naive::loss(plain, config, fast.sums.slots));
            ++compared;
          }
        }
      }
    }
  }
  CHECK(compared == 6 * 5 * 2 * 2 * 2);
}

TEST_CASE("many choices and many experts agree with the rules written out") {
  for (const int experts : {1, 2, 3, 5, 6, 12, 64, 100, 256}) {
    for (const int top_k : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12}) {
      RouterConfig config = parse_router("topk+ir", top_k);
      if (config.choices() > experts) continue;
      config.ir_duplicates = IrDuplicates::exclude;
      config.capacity_factor = Decimal::parse("1.1", "factor") * top_k;
      const Logits logits = random_logits(experts, {50}, static_cast<unsigned>(experts + top_k), 9);
      INFO(experts << " experts, top " << top_k);
      REQUIRE(route(config, experts, logits).routes() ==
              naive::Router(config, experts, logits, {}).routes());
    }
  }
}

TEST_CASE("a capacity factor is the decimal that was typed") {
  const auto capacity = [](const char* factor, std::int64_t tokens, std::int64_t experts) {
    return make("top1", factor).capacity(tokens, experts);
  };
  CHECK(capacity("2.2", 3000, 8) == 825);  // doubles give 826
  CHECK(capacity("0.6667", 3, 1) == 3);
  CHECK(capacity("1", 16384, 8) == 2048);
  CHECK(capacity("1", 3, 8) == 1);     // S < E
  CHECK(capacity("9", 5, 2) == 23);    // C > S
  CHECK(capacity("1.25", 0, 8) == 0);  // a rank without tokens
  RouterConfig library = make("top2", "1.1");
  library.capacity_convention = CapacityConvention::library;
  CHECK(library.capacity(1000, 10) == 220);  // k times as much: CF = k CF_library
  CHECK(make("top2", "2.2").capacity(1000, 10) == 220);
  RouterConfig floor = make("top1", "1");
  floor.min_capacity = 4;
  CHECK(floor.capacity(8, 8) == 4);
}

// Four tokens of three experts, C = 1. First choices 0 0 0 1, second choices 1 2 1 0; the surest
// token is 2, then 1, then 0 and 3 equally.
TEST_CASE("token-max keeps the surest tokens, one choice after another") {
  const Logits logits = {
      join({prefers(0, 1, 1), prefers(0, 2, 2), prefers(0, 1, 3), prefers(1, 0, 1)})};
  RouterConfig config = make("top2", "0.75");
  const RoutedGroup group = route(config, 3, logits);
  REQUIRE(group.capacity == std::vector<std::int64_t>{1});
  // Choice 0: expert 0 keeps token 2, expert 1 keeps token 3. Choice 1: expert 1 is full, expert 2
  // takes token 1, expert 0 is full.
  CHECK(slots(group, 0) == std::vector<int>{-1, -1, 0, 0});
  CHECK(slots(group, 1) == std::vector<int>{-1, 0, -1, -1});
  CHECK(group.loss.failed == Approx(5.0 / 8));
  CHECK(group.loss.partial == 1);
  CHECK(group.loss.unrouted == Approx(0.25));  // token 0
  CHECK(group.loss.padded == 0);
}

TEST_CASE("position keeps the first tokens, and equal keys go to the lower token") {
  const Logits logits = {
      join({prefers(0, 1, 1), prefers(0, 2, 2), prefers(0, 1, 3), prefers(1, 0, 1)})};
  RouterConfig config = make("top2", "0.75");
  config.priority = Priority::position;
  RoutedGroup group = route(config, 3, logits);
  CHECK(slots(group, 0) == std::vector<int>{0, -1, -1, 0});
  CHECK(slots(group, 1) == std::vector<int>{-1, 0, -1, -1});
  // With equal keys token-max is position.
  const Logits equal = {
      join({prefers(0, 1, 1), prefers(0, 2, 1), prefers(0, 1, 1), prefers(1, 0, 1)})};
  config.priority = Priority::token_max;
  group = route(config, 3, equal);
  CHECK(slots(group, 0) == std::vector<int>{0, -1, -1, 0});
  CHECK(slots(group, 1) == std::vector<int>{-1, 0, -1, -1});
}

TEST_CASE("own-score lets a second choice push out a first one") {
  // Both want expert 0: token 0 as its first choice with g about 1/3, token 1 as its second with g
  // about 1/2.
  const Logits logits = {{0.1F, 0.0F, 0.0F, 5.0F, 5.1F, -9.0F}};
  RouterConfig config = make("top2", "1.5");
  config.capacity_factor = Decimal::parse("1.5", "factor");
  REQUIRE(config.capacity(2, 3) == 1);
  config.priority = Priority::own_score;
  RoutedGroup group = route(config, 3, logits);
  CHECK(slots(group, 0) == std::vector<int>{-1, 0});
  CHECK(slots(group, 1) == std::vector<int>{-1, 0});
  config.priority = Priority::token_max;  // first choices come first
  group = route(config, 3, logits);
  CHECK(slots(group, 0) == std::vector<int>{0, 0});
  CHECK(slots(group, 1) == std::vector<int>{-1, -1});
}

TEST_CASE("all choices of a token queue together by token order") {
  // Token 0 prefers expert 1, token 1 expert 0; both choose both. One slot each: token 0 keeps both
  // (DeepSpeed's topkgating with drop_policy "position", MegaBlocks), where choice after choice
  // keeps token 1 on 0 and token 0 on 1.
  const Logits logits{{1, 2, 0, 2, 1, 0}};
  RouterConfig config = make("top2", "1");
  config.min_capacity = 1;
  config.capacity_factor = Decimal(0);
  config.priority = Priority::token_order;
  CHECK(slots(route(config, 3, logits), 0) == std::vector<int>{0, -1});
  CHECK(slots(route(config, 3, logits), 1) == std::vector<int>{0, -1});
  config.priority = Priority::position;
  CHECK(slots(route(config, 3, logits), 0) == std::vector<int>{0, 0});
  CHECK(slots(route(config, 3, logits), 1) == std::vector<int>{-1, -1});
}

TEST_CASE("token order leaves late tokens without any expert") {
  // Library CF 0.5: the first half of the tokens takes nearly all slots with both choices. With
  // `position` the first choices of nearly all tokens take them.
  const Logits logits = random_logits(8, {4096}, 5);
  RouterConfig config = make("top2", "1");
  config.priority = Priority::token_order;
  CHECK(route(config, 8, logits).loss.unrouted > 0.4);
  config.priority = Priority::position;
  CHECK(route(config, 8, logits).loss.unrouted < 0.1);
}

TEST_CASE("random priority is seeded and differs from position") {
  const Logits logits = random_logits(4, {400}, 3);
  RouterConfig config = make("top1", "0.5");
  config.priority = Priority::random;
  RouterContext context;
  const RoutedGroup one = route(config, 4, logits, context);
  CHECK(slots(one, 0) == slots(route(config, 4, logits, context), 0));
  context.seed = 2;
  CHECK(slots(one, 0) != slots(route(config, 4, logits, context), 0));
  config.priority = Priority::position;
  CHECK(slots(one, 0) != slots(route(config, 4, logits, context), 0));
}

TEST_CASE("under group scope ranks share their slots") {
  // Rank 0 sends both tokens to expert 0, rank 1 none: two slots of the group are enough.
  const Logits logits = {{3, 0, 3, 0}, {0, 3, 0, 3}};
  RouterConfig config = make("top1", "1");
  CHECK(route(config, 2, logits).loss.failed == Approx(0.5));
  config.capacity_scope = CapacityScope::group;
  const RoutedGroup group = route(config, 2, logits);
  CHECK(group.loss.failed == 0);
  CHECK(slots(group, 0) == std::vector<int>{0, 1, 0, 1});
  CHECK(group.exchanged_capacity == 2);  // a block is as large as the largest kept count
  CHECK(group.kept_rows == std::vector<std::int32_t>{2, 0, 0, 2});
}

TEST_CASE("equal logits choose the lowest experts and fill slots in token order") {
  const Logits logits = {std::vector<float>(6 * 4, 0.5F)};
  const RoutedGroup group = route(make("top2", "2"), 4, logits);
  CHECK(group.capacity.front() == 3);
  for (std::size_t token = 0; token < 6; ++token) {
    CHECK(group.expert[token] == 0);
    CHECK(group.expert[group.stride + token] == 1);
    CHECK(group.probability[token] == 0.25F);
  }
  CHECK(slots(group, 0) == std::vector<int>{0, 1, 2, -1, -1, -1});
  CHECK(group.loss.failed == Approx(0.5));
  CHECK(group.loss.padded == Approx(0.5));
}

TEST_CASE("minus infinity is never chosen while a finite logit is left") {
  const float none = -std::numeric_limits<float>::infinity();
  const float least = std::numeric_limits<float>::lowest();
  const Logits logits = {
      {none, 1, none, least, /**/ none, none, none, none, /**/ none, none, 2, none}};
  const RoutedGroup group = route(make("top2", "8"), 4, logits);
  CHECK(experts_of(group, 0) == std::vector<int>{1, 0, 2});
  CHECK(experts_of(group, 1) == std::vector<int>{3, 1, 0});
  CHECK(group.probability[0] == 1.0F);
  CHECK(group.probability[group.stride] == 0.0F);
  CHECK(group.probability[1] == 0.25F);  // no preference at all: all experts equal
  CHECK(group.probability[2] == 1.0F);
  CHECK(group.weight[0] == 1.0F);
  CHECK(group.weight[2] == 1.0F);
  CHECK(group.loss.failed == 0);
}

TEST_CASE("NaN and +inf name the rank and the token") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {nan, -nan, std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{37}}) {
      Logits logits = random_logits(5, {3, 38}, 1);
      logits[1][at * 5 + 2] = bad;
      CHECK_THROWS_AS(route(make("top1", "1"), 5, {logits[1]}), UsageError);
      Logits two = random_logits(6, {3, 38}, 1);
      two[1][at * 6 + 5] = bad;
      CHECK_THROWS_WITH(route(make("top1", "1"), 6, two),
                        ContainsSubstring("rank 1, token " + std::to_string(at)));
    }
  }
}

TEST_CASE("tokens there are none of, slots there are none of") {
  const Logits empty = {{}, {}};
  const RoutedGroup group = route(make("top2+fr+ir", "2"), 4, empty);
  CHECK(group.routes().empty());
  CHECK(group.loss.failed == 0);
  CHECK(group.loss.residual_loss == 0);
  CHECK(group.loss.padded == 0);
  RouterConfig nothing = make("top1", "0");  // C = 0
  const RoutedGroup all_lost = route(nothing, 4, random_logits(4, {10}, 1));
  CHECK(all_lost.loss.failed == 1);
  CHECK(all_lost.loss.unrouted == 1);
  CHECK(all_lost.loss.residual_loss == 1);
  CHECK(all_lost.loss.padded == 0);
  const RoutedGroup roomy = route(make("top1", "50"), 4, random_logits(4, {10}, 1));  // C > S
  CHECK(roomy.loss.failed == 0);
  CHECK(roomy.loss.padded == Approx(1 - 10.0 / (4 * 125)));
  const RoutedGroup few = route(make("top2", "2"), 8, random_logits(8, {3}, 1));  // S < E
  CHECK(few.capacity.front() == 1);
}

TEST_CASE("ranks with fewer tokens have fewer slots and send blocks as large as the largest") {
  const RoutedGroup equal = route(make("top1", "1"), 4, random_logits(4, {10, 10}, 1));
  CHECK(equal.exchanged_capacity == 3);
  const RoutedGroup unequal = route(make("top1", "1"), 4, random_logits(4, {8, 10, 0, 0}, 1));
  CHECK(unequal.capacity == std::vector<std::int64_t>{2, 3, 0, 0});
  CHECK(unequal.exchanged_capacity == 3);
}

TEST_CASE("routers that cannot be are refused with the flag to change") {
  CHECK_THROWS_WITH(GroupRouter(parse_router("top2+fr", 0), 2, 1), ContainsSubstring("--top-k"));
  CHECK_THROWS_WITH(GroupRouter(parse_router("top2", 0), 6, 4),
                    ContainsSubstring("--expert-parallel"));
  CHECK_THROWS_AS(GroupRouter(parse_router("dense", 0), 8, 1), UsageError);
  CHECK_THROWS_AS(GroupRouter(parse_router("top64", 0), 128, 1), UsageError);
}

TEST_CASE("weights renormalise over what is kept, over the choices, or not at all") {
  const std::vector<float> row = {2, 1, 0.5F};
  const Logits logits = {join({row, row})};
  RouterConfig config = make("top2", "1.5");  // C = 1: the second token loses both
  const float sum = std::exp(2.0F) + std::exp(1.0F) + std::exp(0.5F);
  const float g0 = std::exp(2.0F) / sum;
  const float g1 = std::exp(1.0F) / sum;
  RoutedGroup group = route(config, 3, logits);
  CHECK(group.weight[0] == Approx(g0 / (g0 + g1)));
  CHECK(group.weight[group.stride] == Approx(g1 / (g0 + g1)));
  CHECK(group.weight[1] == 0);  // no expert and no IR: the residual carries the token
  CHECK(group.weight[group.stride + 1] == 0);
  config.weights = Weights::raw;
  group = route(config, 3, logits);
  CHECK(group.weight[0] == Approx(g0));
  // One kept route of two: its weight is 1 after drops, g0 / (g0 + g1) before.
  const Logits mixed = {join({prefers(0, 1, 3), prefers(2, 1, 1)})};
  config.weights = Weights::kept;
  group = route(config, 3, mixed);
  CHECK(slots(group, 1) == std::vector<int>{0, -1});
  CHECK(group.weight[1] == 1.0F);
  config.weights = Weights::before_drop;
  group = route(config, 3, mixed);
  CHECK(group.weight[1] == Approx(std::exp(2.0) / (std::exp(2.0) + std::exp(1.0))));
}

TEST_CASE("IR gives o = (sum g_j E_j + s g_h E_h) / (sum g_j + s g_h)") {
  // Two ranks, experts 0 1 on rank 0 and 2 3 on rank 1, C = 1.
  const std::vector<float> first = {3, 0, 2, 1};
  const std::vector<float> second = {2, 0.5F, 1, 0};  // loses 0 and 2, both taken by the first
  const Logits logits = {join({first, second}), {}};
  RouterConfig config = make("top2+ir", "2");
  REQUIRE(config.capacity(2, 4) == 1);
  RoutedGroup group = route(config, 4, logits);
  CHECK(group.ir_expert == std::vector<std::int32_t>{-1, 0});
  CHECK(group.ir_weight[1] == 1.0F);  // |R| = 0 is exactly E_h(x), however often it was dropped
  CHECK(group.loss.unrouted == 0);
  CHECK(group.ir_rows == std::vector<std::int32_t>{1, 0});

  // A token that keeps expert 2 and loses 0: h = 0, s = 1.
  const std::vector<float> third = {2, 0.5F, 1, 0};
  const Logits other = {join({{9, 8, 0, 0}, third}), {}};
  group = route(config, 4, other);
  const double g0 = std::exp(2.0), g2 = std::exp(1.0);
  CHECK(group.ir_expert[1] == 0);
  CHECK(group.weight[group.stride + 1] == Approx(g2 / (g2 + g0)));
  CHECK(group.ir_weight[1] == Approx(g0 / (g2 + g0)));
}

TEST_CASE("IR may repeat an expert, or be told not to") {
  // The token keeps its local expert 0 as its second choice and loses expert 2: h = 0 again.
  const Logits logits = {{1, 0.5F, 2, 0, /**/ 0, 0, 9, 8}, {}};
  RouterConfig config = make("top2+ir", "2");
  RoutedGroup group = route(config, 4, logits);
  REQUIRE(slots(group, 0) == std::vector<int>{-1, 0});
  REQUIRE(slots(group, 1) == std::vector<int>{0, 0});
  CHECK(group.ir_expert[0] == 0);
  CHECK(*group.loss.duplicate_ir == Approx(0.5));
  // Two rows of one expert: the weights are halves, s g_h = g_0.
  CHECK(group.weight[group.stride] == 0.5F);
  CHECK(group.ir_weight[0] == 0.5F);
  config.ir_duplicates = IrDuplicates::exclude;
  group = route(config, 4, logits);
  CHECK(group.ir_expert[0] == 1);
  CHECK(*group.loss.duplicate_ir == 0);
  // With one expert per GPU there is no next one, and the token goes without IR.
  RouterConfig lonely = make("top2+ir", "1");
  lonely.ir_duplicates = IrDuplicates::exclude;
  const Logits single = {{2, 1, /**/ 0, 9}, {}};
  group = route(lonely, 2, single);
  REQUIRE(slots(group, 0) == std::vector<int>{0, 0});
  REQUIRE(slots(group, 1) == std::vector<int>{-1, -1});
  CHECK(group.ir_expert == std::vector<std::int32_t>{-1, 0});
}

TEST_CASE("with all experts on one GPU IR is top-1 routing") {
  const Logits logits = random_logits(8, {200}, 5);
  RouterConfig config = make("top2+ir", "0.4");
  const RoutedGroup group = route(config, 8, logits);
  for (std::size_t token = 0; token < 200; ++token) {
    if (group.ir_expert[token] >= 0) CHECK(group.ir_expert[token] == group.expert[token]);
  }
  CHECK(group.ir_rows.front() > 100);
}

TEST_CASE("IR at node level reaches the experts of the NVLink domain") {
  const Logits logits = random_logits(8, {40, 40, 40, 40}, 9);
  RouterConfig config = make("top1+ir@node", "0.2");
  RouterContext context;
  context.place = {0, 2};
  const RoutedGroup group = route(config, 8, logits, context);
  bool left_its_gpu = false;
  for (const Route& one : group.routes()) {
    if (one.kind != RouteKind::ir) continue;
    CHECK(one.expert / 2 / 2 == one.rank / 2);
    left_its_gpu = left_its_gpu || one.expert / 2 != one.rank;
  }
  CHECK(left_its_gpu);
}

TEST_CASE("FR in the run's own order is top-(k+1) with C computed from k") {
  for (const auto priority : {Priority::token_max, Priority::position, Priority::random}) {
    const Logits logits = random_logits(8, {300}, 21);
    RouterConfig filled = make("top2+fr", "2");
    filled.priority = priority;
    filled.fill_order = FillOrder::priority;
    RouterConfig wider = make("top3", "2");
    wider.priority = priority;
    const RoutedGroup one = route(filled, 8, logits);
    const RoutedGroup other = route(wider, 8, logits);
    CHECK(one.capacity == other.capacity);
    for (int choice = 0; choice < 3; ++choice) CHECK(slots(one, choice) == slots(other, choice));
    CHECK(one.loss.residual_loss <= other.loss.residual_loss);  // of two choices, of three
  }
}

TEST_CASE("the two fill orders fill differently") {
  const Logits logits = random_logits(8, {300}, 22);
  RouterConfig config = make("top1+fr", "1.2");
  const RoutedGroup by_score = route(config, 8, logits);
  config.fill_order = FillOrder::priority;
  const RoutedGroup by_priority = route(config, 8, logits);
  CHECK(slots(by_score, 1) != slots(by_priority, 1));
  CHECK(by_score.loss.padded == by_priority.loss.padded);
  CHECK(slots(by_score, 0) == slots(by_priority, 0));
}

TEST_CASE("every instruction set gives the same bits") {
  for (const int experts : {3, 8, 64}) {
    const Logits logits = random_logits(experts, {1000}, 33);
    const std::vector<RankLogits> ranks = spans(logits, experts);
    for (const char* name : {"top1", "top2+fr+ir"}) {
      GroupRouter reference(make(name, "1"), experts, 1, SimdLevel::baseline);
      const RoutedGroup expected = reference.route(ranks);
      for (const SimdLevel level : available_simd_levels()) {
        INFO(name_of(level));
        GroupRouter router(make(name, "1"), experts, 1, level);
        const RoutedGroup& group = router.route(ranks);
        CHECK(group.routes() == expected.routes());
        CHECK(group.loss.residual_loss == expected.loss.residual_loss);
        CHECK(group.loss.lost_mass == expected.loss.lost_mass);
      }
    }
  }
}
