#include "sim/training/step/job_rules.hpp"

#include <cmath>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/training/step/layer_time.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

TrainingJob job(const char* model, int gpus, int expert) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load(model));
  made.layout.sizes.gpus = gpus;
  made.layout.sizes.expert = expert;
  made.layout.sequence_length = 1024;
  made.layout.global_batch = 4 * gpus;
  return made;
}

DrawnRouting dropless(const char* scores, int top_k = 8) {
  DrawnRouting made;
  made.router = routing::parse_router("dropless", top_k, 8);
  made.scores = routing::parse_score_source(scores, "test");
  return made;
}

}  // namespace

TEST_CASE("copies that do not divide are refused") {
  TrainingJob made = job("qwen3-30b-a3b", 16, 8);
  made.routing = dropless("gaussian:0.1");
  made.redundant_experts = 4;
  const auto says = ContainsSubstring("132 experts and copies do not divide among 8 ranks (EP): 8");
  CHECK_THROWS_WITH(training_step(made), says);
  CHECK_THROWS_WITH(layer_time(made, LayerExtent::whole, false), says);
  CHECK_THAT(option_refusal(made).value(), says);
  made.redundant_experts = 8;
  CHECK_FALSE(option_refusal(made));
  made.routing->router.capacity_factor = Decimal::parse("1", "test");
  made.routing->router.drops = true;
  CHECK_THAT(option_refusal(made).value(), ContainsSubstring("leave the capacity out"));
}

// Each of 8 ranks of 128 experts has use for the other 112, once.
TEST_CASE("a rank holds an expert once") {
  TrainingJob made = job("qwen3-30b-a3b", 16, 8);
  made.routing = dropless("zipf:1");
  made.redundant_experts = 7 * 128;
  CHECK_FALSE(option_refusal(made));
  made.redundant_experts = 7 * 128 + 8;
  CHECK_THAT(option_refusal(made).value(),
             ContainsSubstring("--redundant-experts 904: at most 896: each of 8 ranks"));
  made.layout.sizes.expert = 1;
  made.redundant_experts = 1;
  CHECK_THAT(option_refusal(made).value(), ContainsSubstring("leave it out"));
}

// All tokens choose 8 experts of the 16 of one rank: 8 times balance. Of 64 ranks with 2 of 128
// experts a rank has at most 2 of a token's 8 routes: 64 x 2 / 8 = 16 times.
TEST_CASE("a rank has no more rows than its experts can be chosen for") {
  TrainingJob made = job("qwen3-30b-a3b", 64, 8);
  made.routing = dropless("gaussian:0.1");
  made.routing->rank_capacity = 8;
  CHECK_FALSE(option_refusal(made));
  made.routing->rank_capacity = 8.5;
  CHECK_THAT(option_refusal(made).value(),
             ContainsSubstring(
                 "--rank-capacity 8.5: at most 8 times balance on one of 8 expert-parallel ranks"));
  CHECK_THROWS_WITH(check_job(made), ContainsSubstring("work: --expert-parallel 16"));
  made.layout.sizes.expert = 64;
  made.routing->rank_capacity = 17;
  CHECK_THAT(option_refusal(made).value(),
             ContainsSubstring("at most 16 times balance on one of 64"));
  CHECK_THAT(option_refusal(made).value(), !ContainsSubstring("more --expert-parallel"));
}

TEST_CASE("of the nearest layouts none breaks a rule of the options") {
  TrainingJob made = job("mixtral-8x7b", 16, 2);
  made.layout.sizes.tensor = made.layout.sizes.pipeline = 4;
  made.layout.micro_batch = 12;
  made.layout.global_batch = 128;
  made.states.optimizer_instances = 2;
  // 16 / (TP 4 x PP 4): one replica, which no batch divides in two.
  CHECK_THROWS_WITH(check_job(made), ContainsSubstring("--global-batch 128 is no multiple of") &&
                                         ContainsSubstring("nearest layouts that work: --") &&
                                         !ContainsSubstring("work: --global-batch 132;"));
  made.states.optimizer_instances = 1;
  CHECK_THROWS_WITH(check_job(made), ContainsSubstring("work: --global-batch 132;"));
}

TEST_CASE("a dispatcher of one NVLink domain takes no larger group of experts") {
  TrainingJob made = job("qwen3-30b-a3b", 16, 16);
  made.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("trtllm"));
  CHECK_THROWS_AS(check_job(made), UsageError);
  CHECK_THROWS_WITH(check_job(made),
                    ContainsSubstring("--dispatcher trtllm works inside one NVLink domain") &&
                        ContainsSubstring("such as deepep; nearest layouts that work: "
                                          "--expert-parallel 8; --expert-parallel 4"));
  made.layout.sizes.expert = 8;
  CHECK_NOTHROW(check_job(made));
  CHECK_NOTHROW(training_step(made));
  made.layout.sizes.expert_tensor = 2;
  CHECK_THROWS_WITH(check_job(made), ContainsSubstring("= 16 ranks lie in several, each of 8"));
  made.layout.sizes.expert_tensor = 1;
  made.ranks_per_domain = 4;
  CHECK_THROWS_WITH(check_job(made), ContainsSubstring("each of 4"));
  made.ranks_per_domain = 0;
  made.layout.sizes.gpus = made.layout.sizes.expert = 1;
  CHECK_NOTHROW(check_job(made));
  made.layout.sizes.gpus = made.layout.sizes.expert = 64;
  made.layout.global_batch = 256;
  made.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  CHECK_NOTHROW(check_job(made));
}

TEST_CASE("a dispatcher needs as many ranks in each domain, and slices of an expert in one") {
  TrainingJob made = job("kimi-k2", 24, 3);
  made.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  CHECK_THAT(option_refusal(made).value(),
             ContainsSubstring("= 3 ranks do not divide among 2 domains"));
  made.layout.sizes.expert = 4;
  CHECK_FALSE(option_refusal(made));
  made.layout.sizes.expert = 2;  // ranks 6 to 11 lie three and three, by the law
  made.layout.sizes.expert_tensor = 3;
  CHECK_FALSE(option_refusal(made));
  made.layout.sizes.expert = 1;  // ranks 6, 7 and 8
  CHECK_THAT(option_refusal(made).value(), ContainsSubstring("--expert-tensor-parallel 3"));
  made.dispatcher = nullptr;
  CHECK_FALSE(option_refusal(made));
}

TEST_CASE("tokens too few for the law of a rank's rows refuse the layout") {
  TrainingJob made = job("qwen3-30b-a3b", 64, 8);
  made.routing = dropless("gaussian:0.1");
  made.routing->rank_capacity = 1.2;
  CHECK_FALSE(option_refusal(made));
  made.layout.sizes.tensor = 8;  // 128 of 1,024 tokens
  CHECK_THAT(option_refusal(made).value(), ContainsSubstring("128 tokens per GPU are too few"));
  CHECK_THROWS_WITH(check_job(made), ContainsSubstring("work: --tensor-parallel 4;"));
}

TEST_CASE("where every token takes every expert no buffer of balance overflows") {
  TrainingJob made = job("mixtral-8x7b", 16, 8);
  made.routing = dropless("gaussian:0.1", 8);
  made.routing->rank_capacity = 1;  // more cannot come
  const TrainingStep step = training_step(made);
  CHECK(step.rank_capacity->overflow_chance == 0);
  CHECK(step.step_us == step.rank_capacity->static_step_us);
  CHECK(RankRowsLaw(made).rows_for(0.01) == 8 * 1024 * 8 / 8.0);
}

TEST_CASE("one rank with all experts has as many rows as balance, exactly") {
  TrainingJob made = job("qwen3-30b-a3b", 16, 1);
  made.layout.sizes.pipeline = 4;
  made.routing = dropless("gaussian:0.1");
  made.routing->rank_capacity = 1;
  const RankRowsLaw law(made);
  CHECK(law.overflow_chance(8 * 1024) == 0);
  CHECK_FALSE(std::signbit(law.overflow_chance(1e9)));
  CHECK(law.overflow_chance(8 * 1024 - 1) == 1);
}

TEST_CASE("a buffer of fixed size saves the host's reads with forced balance too") {
  TrainingJob made = job("qwen3-30b-a3b", 16, 8);
  made.layout.sequence_length = 4096;
  made.routing = dropless("gaussian:0.01");
  made.routing->rank_capacity = 2;
  const TrainingStep step = training_step(made);
  CHECK(step.rank_capacity->static_step_us >= Approx(step.balanced_step_us));
  CHECK(step.rank_capacity->static_step_us < 1.01 * step.balanced_step_us);
}

TEST_CASE("slices of experts even out what forced balance has on its busiest rank") {
  TrainingJob made = job("mixtral-8x7b", 64, 8);
  made.layout.sizes.tensor = made.layout.sizes.expert_tensor = 2;
  TrainingJob drawn = made;
  drawn.routing = dropless("gaussian:0", 2);
  drawn.routing->draws = RoutingDraws::per_micro_batch;
  const double found = training_step(drawn).imbalance;
  CHECK(forced_load(made).computed == Approx(found).epsilon(0.003));
  CHECK(forced_load(made).exchanged - 1 ==
        Approx((forced_load(made).computed - 1) * std::sqrt(2)).epsilon(1e-9));
}

TEST_CASE("of layers recomputed in blocks each takes its share, in pairs too") {
  for (const auto kind : {parallel::ScheduleKind::gpipe, parallel::ScheduleKind::dualpipe_v}) {
    std::vector<double> times;
    for (const char* text : {"none", "full:block:2", "full:block:4", "full"}) {
      TrainingJob made = job("qwen3-30b-a3b", 32, 4);
      made.layout.sequence_length = 4096;
      made.layout.sizes.pipeline = 4;
      made.layout.schedule = kind;
      made.layout.global_batch = 128;
      made.recompute = model::parse_recompute(text, "test");
      times.push_back(training_step(made).step_us);
    }
    const double layers = kind == parallel::ScheduleKind::gpipe ? 12 : 6;  // of a chunk
    const double all = times[3] - times[0];
    CHECK(times[1] - times[0] == Approx(2 / layers * all).epsilon(0.1));
    CHECK(times[2] - times[0] == Approx(4 / layers * all).epsilon(0.1));
  }
}

TEST_CASE("a layer of a dense model is refused with the model's name as it was typed") {
  TrainingJob made = job("llama2-7b", 16, 1);
  const auto refused = [&](const char* says) {
    CHECK_THROWS_WITH(layer_time(made, LayerExtent::moe, false), ContainsSubstring(says));
  };
  refused("--model llama2-7b: it has no experts");
  made.typed.model = "own/dense.json";
  refused("--model own/dense.json: it has no experts");
}
