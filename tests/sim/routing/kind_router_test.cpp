#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "sim/base/error.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/tokens/softmax.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/small_routing.hpp"

using namespace moesim;
using namespace moesim::routing;
using test::kept_experts;
using test::Logits;
using test::make;
using test::random_logits;
using test::route;
using test::small_job;
using test::spans;

namespace {

const std::vector<std::string> all_routers{
    "top2+fr+ir",        "dropless",   "expert-choice",         "base",
    "base:greedy",       "random",     "random:balanced",       "hash:1",
    "scomoe:0.3:0.3",    "scomoe:1:0", "gating-dropout:0",      "gating-dropout:0.9",
    "group-limited:4:2", "sinkhorn",   "bias-balanced:0.01:20", "bias-balanced:0.01:5+groups:4:2"};

}  // namespace

TEST_CASE("group-limited takes the best experts of the best groups") {
  // Two groups of two experts, one kept, k = 2. exp(2) + exp(1.9) beats exp(3) + exp(-9): 14.07
  // against 20.09 it does not, so the group of the single best expert wins; with exp(2.5) +
  // exp(-9), 12.18, it loses.
  const Logits logits{{3, -9, 2, 1.9F, 2.5F, -9, 2, 1.9F}};
  RouterConfig config = make("group-limited:2:1", 2);
  config.group_score = GroupScore::top2;
  const RoutedGroup group = route(config, 4, logits);
  CHECK(kept_experts(group, 0, 0) == std::vector<int>{0, 1});
  CHECK(kept_experts(group, 0, 1) == std::vector<int>{2, 3});
  // Token 0 gives up expert 2 for expert 1: it has (e^3 + e^-9) of the (e^3 + e^2) of its two best;
  // token 1 gives up expert 0 for expert 3: (e^2 + e^1.9) of (e^2.5 + e^2).
  const double first = 1 - (std::exp(3) + std::exp(-9)) / (std::exp(3) + std::exp(2));
  const double second = 1 - (std::exp(2) + std::exp(1.9)) / (std::exp(2.5) + std::exp(2));
  CHECK(group.loss.residual_loss == Approx((first + second) / 2).epsilon(1e-5));
  CHECK(group.loss.failed == 0);
}

TEST_CASE("token-max of group-limited goes by the largest g of all experts") {
  // By sums of logits both tokens keep the second group and choose experts 2 and 3 of it, with one
  // slot each. Token 0 has its largest g, 0.79, outside: above the 0.51 of token 1.
  const Logits logits{{3, -5, 1, 0.9F, /**/ -2, -2, 2, 1.9F}};
  RouterConfig config = make("group-limited:2:1", 2, "1");
  config.group_score = GroupScore::topk_logits;
  config.drops = true;
  config.priority = Priority::token_max;
  const RoutedGroup group = route(config, 4, logits);
  CHECK(kept_experts(group, 0, 0) == std::vector<int>{2, 3});
  CHECK(kept_experts(group, 0, 1).empty());
}

TEST_CASE("group-limited agrees with a plain sort, ties and -inf included") {
  const int experts = 12;
  for (unsigned seed = 0; seed < 20; ++seed) {
    Logits logits = random_logits(experts, {37, 0, 16}, seed, seed % 2 == 0 ? 3 : 0);
    if (seed % 3 == 0) logits[0][5] = -std::numeric_limits<float>::infinity();
    RouterConfig config = make("group-limited:4:2", 3);
    config.group_score = seed % 4 < 2 ? GroupScore::top2 : GroupScore::max;
    const RoutedGroup group = route(config, experts, logits);
    for (int rank = 0; rank < 3; ++rank) {
      const auto& rows = logits[static_cast<std::size_t>(rank)];
      for (int token = 0; token < static_cast<int>(rows.size()) / experts; ++token) {
        const float* row = rows.data() + token * experts;
        std::vector<std::pair<double, int>> groups;  // minus the best or two best g, group
        for (int index = 0; index < 4; ++index) {
          std::vector<double> g;
          for (int at = 0; at < 3; ++at) g.push_back(std::exp(double{row[3 * index + at]}));
          std::sort(g.rbegin(), g.rend());
          groups.emplace_back(-(seed % 4 < 2 ? g[0] + g[1] : g[0]), index);
        }
        std::sort(groups.begin(), groups.end());
        std::vector<std::pair<float, int>> offered;
        for (int kept = 0; kept < 2; ++kept) {
          for (int at = 0; at < 3; ++at) {
            const int expert = 3 * groups[static_cast<std::size_t>(kept)].second + at;
            offered.emplace_back(-row[expert], expert);
          }
        }
        std::sort(offered.begin(), offered.end());
        std::vector<int> expected;
        for (std::size_t choice = 0; choice < 3; ++choice)
          expected.push_back(offered[choice].second);
        CHECK(kept_experts(group, rank, token) == expected);
      }
    }
  }
}

TEST_CASE("all groups kept is dropless top-k to the bit") {
  const Logits logits = random_logits(8, {50, 50}, 3);
  const RoutedGroup limited = route(make("group-limited:4:4", 2), 8, logits);
  const RoutedGroup free = route(make("dropless", 2), 8, logits);
  CHECK(limited.routes() == free.routes());
  CHECK(limited.loss.residual_loss == 0);
}

TEST_CASE("expert-choice gives every expert its best tokens") {
  // g of expert 0: 0.9, 0.8, 0.6, 0.3; C = ceil(1 * 4 / 2) = 2: experts 0 and 1 take tokens {0, 1}
  // and {2, 3}.
  const auto row = [](double g) {
    return std::vector<float>{static_cast<float>(std::log(g)), static_cast<float>(std::log(1 - g))};
  };
  Logits logits{{}};
  for (const double g : {0.9, 0.8, 0.6, 0.3}) {
    const std::vector<float> one = row(g);
    logits[0].insert(logits[0].end(), one.begin(), one.end());
  }
  const RoutedGroup group = route(make("expert-choice", 1), 2, logits);
  CHECK(group.kept_rows == std::vector<std::int32_t>{2, 2});
  CHECK(kept_experts(group, 0, 2) == std::vector<int>{1});
  // Token 2's best expert, 0, did not take it: one route of four, its 0.6 of 0.9 + 0.8 + 0.6 + 0.7.
  CHECK(group.loss.failed == 0.25);
  CHECK(group.loss.lost_mass == Approx(0.6 / 3.0).epsilon(1e-5));
  // It has 0.4 of the 0.6 that its best would give; no token is left out.
  CHECK(group.loss.residual_loss == Approx((1 - 0.4 / 0.6) / 4).epsilon(1e-5));
  CHECK(group.loss.unrouted == 0);
  CHECK(group.loss.padded == 0);
  // Weights are g: 0.4 for token 2 under expert 1.
  for (const Route& one : group.routes()) {
    if (one.token == 2) CHECK(one.weight == Approx(0.4).epsilon(1e-5));
  }
}

TEST_CASE("expert-choice: ties go to the lower token, and C may exceed S") {
  const Logits equal{std::vector<float>(10, 1.0F)};  // five tokens, two experts, all equal
  // C = ceil(1 * 5 / 2) = 3: tokens 0, 1 and 2 twice, 3 and 4 never.
  const RoutedGroup group = route(make("expert-choice", 1), 2, equal);
  CHECK(kept_experts(group, 0, 2) == std::vector<int>{0, 1});
  CHECK(kept_experts(group, 0, 3).empty());
  CHECK(group.loss.unrouted == Approx(0.4));
  // CF 4: C = 10 of 5 tokens; each expert takes all, half of its slots stay empty.
  const RoutedGroup more = route(make("expert-choice", 1, "4"), 2, equal);
  CHECK(more.kept_rows == std::vector<std::int32_t>{5, 5});
  CHECK(more.loss.padded == 0.5);
  CHECK(more.loss.unrouted == 0);
}

TEST_CASE("expert-choice agrees with sorting every column") {
  for (const CapacityScope scope : {CapacityScope::source, CapacityScope::group}) {
    const int experts = 6;
    const Logits logits = random_logits(experts, {23, 40}, 5);
    RouterConfig config = make("expert-choice", 2, "1.3");
    config.capacity_scope = scope;
    const RoutedGroup group = route(config, experts, logits);
    std::set<std::tuple<int, int, int>> expected;  // rank, token, expert
    for (int expert = 0; expert < experts; ++expert) {
      std::vector<std::tuple<double, int, int>> column;  // minus g, rank, token
      std::int64_t slots = 0;
      const auto take = [&] {
        std::sort(column.begin(), column.end());
        for (std::size_t at = 0; at < static_cast<std::size_t>(slots); ++at) {
          expected.emplace(std::get<1>(column[at]), std::get<2>(column[at]), expert);
        }
        column.clear();
        slots = 0;
      };
      for (int rank = 0; rank < 2; ++rank) {
        const auto& rows = logits[static_cast<std::size_t>(rank)];
        const int tokens = static_cast<int>(rows.size()) / experts;
        for (int token = 0; token < tokens; ++token) {
          double sum = 0;
          for (int other = 0; other < experts; ++other) {
            sum += std::exp(double{rows[static_cast<std::size_t>(token * experts + other)]});
          }
          const double own =
              std::exp(double{rows[static_cast<std::size_t>(token * experts + expert)]});
          column.emplace_back(-own / sum, rank, token);
        }
        slots += static_cast<std::int64_t>(std::ceil(1.3 * tokens / experts - 1e-9));
        if (scope == CapacityScope::source) take();
      }
      if (scope == CapacityScope::group) take();
    }
    std::set<std::tuple<int, int, int>> found;
    for (const Route& one : group.routes()) found.emplace(one.rank, one.token, one.expert);
    CHECK(found == expected);
  }
}

TEST_CASE("base gives each expert as many tokens, for the largest sum of logits") {
  // Both tokens prefer expert 0, token 0 by 3, token 1 by 1: token 1 gives way.
  const Logits logits{{4, 1, 2, 1}};
  const RoutedGroup group = route(make("base"), 2, logits);
  CHECK(kept_experts(group, 0, 0) == std::vector<int>{0});
  CHECK(kept_experts(group, 0, 1) == std::vector<int>{1});
  CHECK(group.routes()[1].weight == Approx(1 / (1 + std::exp(-1.0))).epsilon(1e-6));
  // Token 1 has e^1 of the e^2 of its best expert.
  CHECK(group.loss.residual_loss == Approx((1 - std::exp(-1.0)) / 2).epsilon(1e-5));
  CHECK(group.loss.failed == 0);
  CHECK(group.exchanged_capacity == 1);

  const RoutedGroup greedy = route(make("base:greedy"), 2, logits);
  CHECK(kept_experts(greedy, 0, 1) == std::vector<int>{0});
  CHECK(greedy.kept_rows == std::vector<std::int32_t>{2, 0});
  CHECK(greedy.loss.residual_loss == 0);
}

TEST_CASE("random routes lose the floor that chance sets, balanced ones nothing") {
  RoutingJob job = small_job("random");
  job.tokens_per_gpu = 16384;
  job.layers = 8;
  // 0.399 sqrt((E - 1) / S) = 0.825 % at E = 8, S = 16,384. Per GPU and layer the loss scatters by
  // about a quarter of that; 64 of them by 3 %.
  const ReplicaRouting routing = simulate_routing(job, 0);
  CHECK(routing.loss.failed == Approx(0.399 * std::sqrt(7.0 / 16384)).epsilon(0.12));
  CHECK(routing.loss.padded == Approx(routing.loss.failed));  // E C = S
  CHECK(routing.loss.residual_loss == Approx(routing.loss.unrouted));
  job.router = make("random:balanced");
  CHECK(simulate_routing(job, 0).loss.failed == 0);
  job.tokens_per_gpu = 1003;  // C = 126: three experts have 126 tokens, five 125
  CHECK(simulate_routing(job, 0).loss.failed == 0);
}

TEST_CASE("hashed ids are static and as skewed as the ids are") {
  RoutingJob job = small_job("hash:1");
  job.experts = 64;
  job.tokens_per_gpu = 4096;
  const auto most = [&](const char* router) {
    job.router = make(router);
    const std::vector<std::int64_t> demand = simulate_routing(job, 0).layers[0].demand;
    return static_cast<double>(*std::max_element(demand.begin(), demand.end())) / (8 * 4096.0);
  };
  // The first of 32,000 ids by 1 / rank has 1 / 10.95 = 9.1 % of the tokens, all to one expert;
  // 32,768 tokens scatter by 0.16 points.
  CHECK(most("hash:1") > 0.086);
  // Uniform ids: 1 / 64, plus the scatter of ids (500 an expert, 4.5 %) and tokens (512, 4.4 %).
  CHECK(most("hash:0") < 1.25 / 64);
  // The same id goes to the same expert whatever the seed: the experts of most ids differ between
  // layers only.
  job.router = make("hash:10");  // nearly all tokens are id 0
  const auto expert_of_first = [&](std::uint64_t seed, std::size_t layer) {
    job.seed = seed;
    const std::vector<std::int64_t> demand = simulate_routing(job, 0).layers[layer].demand;
    return std::max_element(demand.begin(), demand.end()) - demand.begin();
  };
  CHECK(expert_of_first(1, 0) == expert_of_first(2, 0));
  CHECK(expert_of_first(1, 0) != expert_of_first(1, 1));
}

TEST_CASE("soft loses nothing and fills all slots") {
  const LayerRouting layer = simulate_routing(small_job("soft"), 0).layers[0];
  CHECK(layer.loss.failed == 0);
  CHECK(layer.loss.residual_loss == 0);
  CHECK(layer.loss.padded == 0);
  CHECK(layer.capacity == 128);  // 1,024 / 8
  CHECK(layer.exchanged_capacity == 128);
  CHECK(layer.kept_rows == std::vector<std::int32_t>(64, 128));
  CHECK_THROWS_WITH(GroupRouter(make("soft"), 8, 1), ContainsSubstring("mix of all tokens"));
}

TEST_CASE("scomoe without pools is top-k, with blocks of C") {
  RoutingJob job = small_job("scomoe:0:0", 2);
  const LayerRouting pooled = simulate_routing(job, 0).layers[1];
  job.router = make("top2");
  const LayerRouting plain = simulate_routing(job, 0).layers[1];
  CHECK(pooled.loss.failed == plain.loss.failed);
  CHECK(pooled.loss.lost_mass == plain.loss.lost_mass);
  CHECK(pooled.loss.padded == plain.loss.padded);
  CHECK(pooled.loss.residual_loss == Approx(plain.loss.residual_loss).epsilon(1e-6));
  CHECK(pooled.demand == plain.demand);
  CHECK(pooled.kept_rows == std::vector<std::int32_t>(64, 256));
  // The empty pools have no slots, be the least capacity what it may.
  job.router = make("scomoe:0:0", 2);
  job.router.min_capacity = 4;
  CHECK(simulate_routing(job, 0).layers[1].kept_rows == pooled.kept_rows);
}

TEST_CASE("scomoe slices a GPU's tokens into pools with slots of their own") {
  // 8 experts over 4 GPUs, two to a domain; 100 tokens, k = 1, CF 1. Own: 40 tokens over 2 experts,
  // C = 20; domain: 30 over 4, C = 8; anywhere: 30 over 8, C = 4.
  const RouterContext context{{0, 2}, 1, 0, 0};
  const Logits logits = random_logits(8, {100, 100, 100, 100}, 11);
  const RoutedGroup group = route(make("scomoe:0.4:0.3", 1, "1"), 8, logits, context);
  // The blocks of GPU 2, which owns experts 4 and 5 and shares a domain with 6 and 7.
  const std::vector<std::int32_t> blocks(group.kept_rows.begin() + 16,
                                         group.kept_rows.begin() + 24);
  CHECK(blocks == std::vector<std::int32_t>{4, 4, 4, 4, 32, 32, 12, 12});
  for (const Route& one : group.routes()) {
    if (one.rank != 2) continue;
    const bool own = one.expert == 4 || one.expert == 5;
    if (one.token < 40) CHECK(own);
    if (one.token >= 40 && one.token < 70) CHECK(one.expert >= 4);
    if (one.slot < 0) continue;
    const int first = one.token < 40    ? 0
                      : one.token < 70  ? (own ? 20 : 0)
                      : own             ? 28
                      : one.expert >= 6 ? 8
                                        : 0;
    const int slots = one.token < 40 ? 20 : one.token < 70 ? 8 : 4;
    CHECK(one.slot >= first);
    CHECK(one.slot < first + slots);
  }
}

TEST_CASE("gating-dropout without dropout is top-k to the bit") {
  for (const char* suffix : {"", "+fr+ir", "+ir@node"}) {
    RoutingJob job = small_job(std::string("gating-dropout:0") + suffix, 2);
    const ReplicaRouting dropout = simulate_routing(job, 0);
    job.router = make(std::string("top2") + suffix);
    const ReplicaRouting plain = simulate_routing(job, 0);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      CHECK(dropout.layers[layer].kept_rows == plain.layers[layer].kept_rows);
      CHECK(dropout.layers[layer].ir_rows == plain.layers[layer].ir_rows);
      CHECK(dropout.layers[layer].loss.residual_loss == plain.layers[layer].loss.residual_loss);
      CHECK(dropout.layers[layer].loss.failed == plain.layers[layer].loss.failed);
      CHECK(dropout.layers[layer].exchanged);
    }
  }
}

TEST_CASE("gating-dropout keeps a skipped layer's tokens on their GPUs") {
  RoutingJob job = small_job("gating-dropout:0.3+ir", 2);
  job.tokens_per_gpu = 128;
  job.layers = 50;
  int skipped = 0;
  for (int replica = 0; replica < 8; ++replica) {
    for (const LayerRouting& layer : simulate_routing(job, replica).layers) {
      if (layer.exchanged) continue;
      ++skipped;
      CHECK(layer.capacity == 128);   // ceil(2 * 128 / 2): two experts on each GPU
      CHECK(layer.loss.failed == 0);  // k = 2 of 2 experts: each has all 128 tokens
      CHECK(layer.loss.residual_loss > 0.1);
      for (int gpu = 0; gpu < 8; ++gpu) {
        for (int expert = 0; expert < 8; ++expert) {
          const bool own = expert / 2 == gpu % 4;
          CHECK(layer.kept_rows[static_cast<std::size_t>(gpu * 8 + expert)] == (own ? 128 : 0));
        }
      }
    }
  }
  // 400 coins of 0.3: 120 with a standard deviation of 9.2.
  CHECK(skipped > 120 - 37);
  CHECK(skipped < 120 + 37);
}

TEST_CASE("routes of every router are consistent with its rows, whatever the shape") {
  for (const std::string& name : all_routers) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      CAPTURE(name, seed);
      const int experts = 8;
      const std::vector<int> tokens =
          seed % 2 == 0 ? std::vector<int>{64, 0, 24, 40} : std::vector<int>{16, 16};
      const int ranks = static_cast<int>(tokens.size());
      const Logits logits = random_logits(experts, tokens, seed, seed < 2 ? 0 : 2);
      RouterContext context;
      context.seed = seed;
      const RoutedGroup group = route(make(name), experts, logits, context);
      std::map<std::pair<int, int>, std::set<int>> slots;  // (rank, expert)
      std::set<std::tuple<int, int, int>> seen;
      for (const Route& one : group.routes()) {
        if (one.kind == RouteKind::ir) continue;
        CHECK(one.expert >= 0);
        CHECK(one.expert < experts);
        CHECK(seen.emplace(one.rank, one.token, one.expert).second);
        if (one.slot >= 0) CHECK(slots[{one.rank, one.expert}].insert(one.slot).second);
        CHECK((one.slot >= 0 || one.weight == 0));
      }
      for (int rank = 0; rank < ranks; ++rank) {
        for (int expert = 0; expert < experts; ++expert) {
          const auto rows = static_cast<std::size_t>(
              group.kept_rows[static_cast<std::size_t>(rank * experts + expert)]);
          const std::set<int>& taken = slots[{rank, expert}];
          if (name.starts_with("scomoe")) {
            CHECK(taken.size() <= rows);
          } else {
            CHECK(taken.size() == rows);
          }
          if (!taken.empty()) CHECK(*taken.rbegin() < group.exchanged_capacity);
        }
      }
    }
  }
}

TEST_CASE("every router gives the same routes at every instruction set") {
  const int experts = 8;
  const Logits logits = random_logits(experts, {64, 48}, 9);
  for (const std::string& name : all_routers) {
    CAPTURE(name);
    const RouterConfig config = make(name);
    GroupRouter reference(config, experts, 2, SimdLevel::baseline);
    const std::vector<Route> expected = reference.route(spans(logits, experts)).routes();
    CHECK_FALSE(expected.empty());
    for (const SimdLevel level : available_simd_levels()) {
      GroupRouter router(config, experts, 2, level);
      CHECK(router.route(spans(logits, experts)).routes() == expected);
      CHECK(router.route(spans(logits, experts)).routes() == expected);  // memory is reused
    }
  }
}

TEST_CASE("a job routes as it does alone, beside jobs of other routers") {
  std::vector<RoutingJob> jobs;
  for (const std::string& name : all_routers) jobs.push_back(small_job(name));
  for (RoutingJob& job : jobs) job.tokens_per_gpu = 64;
  const std::vector<ReplicaRouting> together = simulate_routing(jobs, 1);
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    CAPTURE(all_routers[job]);
    const ReplicaRouting alone = simulate_routing(jobs[job], 1);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      CHECK(together[job].layers[layer].kept_rows == alone.layers[layer].kept_rows);
      CHECK(together[job].layers[layer].loss.residual_loss ==
            alone.layers[layer].loss.residual_loss);
      CHECK(together[job].layers[layer].demand == alone.layers[layer].demand);
    }
  }
}

TEST_CASE("logits that no router takes are named, those that stand for nothing are not chosen") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::string name :
       {"group-limited:2:1", "bias-balanced:0.01:2", "bias-balanced:0.01:2+groups:2:1",
        "expert-choice", "base", "scomoe:0.5:0", "gating-dropout:0.9"}) {
    CAPTURE(name);
    Logits logits = random_logits(4, {8}, 2);
    logits[0][6] = std::numeric_limits<float>::quiet_NaN();
    CHECK_THROWS_WITH(route(make(name, name == "base" ? 0 : 2), 4, logits),
                      ContainsSubstring("rank 0, token 1 hold NaN at expert 2"));
    logits[0][6] = infinity;
    CHECK_THROWS_WITH(route(make(name, name == "base" ? 0 : 2), 4, logits),
                      ContainsSubstring("+inf"));
  }
  // A bias pulls no token to an expert of -inf.
  Logits logits{{}};
  for (int token = 0; token < 32; ++token) logits[0].insert(logits[0].end(), {0.0F, -infinity});
  const RoutedGroup group = route(make("bias-balanced:1:5", 1), 2, logits);
  CHECK(group.kept_rows == std::vector<std::int32_t>{32, 0});
  // Nor to another group: of the group {0.5, 0.5} against {0.99, -inf} both experts are taken, and
  // the group {5, -inf} of 0.99 + 0 against {-1, -1} of 0.27 twice has to give its second one.
  const Logits pairs{{0, 0, 5, -infinity, 5, -infinity, -1, -1}};
  const RoutedGroup limited = route(make("bias-balanced:1:0+groups:2:1", 2), 4, pairs);
  CHECK(kept_experts(limited, 0, 0) == std::vector<int>{0, 1});
  CHECK(kept_experts(limited, 0, 1) == std::vector<int>{0, 1});
}
