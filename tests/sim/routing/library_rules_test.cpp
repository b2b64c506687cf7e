// Rules of libraries that the names of routers alone do not decide, on the smallest cases in which
// they differ. tests/conformance compares with the libraries themselves.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/base/random.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/rules/dialect.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

std::vector<Route> routes_of(const RouterConfig& config, int experts,
                             const std::vector<float>& logits) {
  const auto tokens = static_cast<std::int64_t>(logits.size()) / experts;
  const std::vector<RankLogits> ranks{{logits, tokens}};
  return route_group(config, experts, ranks).routes();
}

std::set<int> experts_of(const RouterConfig& config, int experts, const std::vector<float>& logits,
                         int token = 0) {
  std::set<int> found;
  for (const Route& route : routes_of(config, experts, logits)) {
    if (route.token == token && route.slot >= 0) found.insert(route.expert);
  }
  return found;
}

double weight_of(const RouterConfig& config, int experts, const std::vector<float>& logits,
                 int expert) {
  for (const Route& route : routes_of(config, experts, logits)) {
    if (route.token == 0 && route.expert == expert) return static_cast<double>(route.weight);
  }
  return -1;
}

std::vector<float> random_logits(std::size_t tokens, std::size_t experts) {
  Stream stream({5, Purpose::test_data});
  std::vector<float> logits(tokens * experts);
  for (std::size_t at = 0; at < logits.size(); ++at) {
    const double popularity = at % experts < 2 ? 1.0 : 0.0;
    logits[at] = static_cast<float>(stream.normal() + popularity);
  }
  return logits;
}

struct BiasFile {
  BiasFile() = default;
  BiasFile(const BiasFile&) = delete;  // a copy would remove the file twice
  BiasFile& operator=(const BiasFile&) = delete;
  ~BiasFile() { std::filesystem::remove(path); }
  std::string path = (std::filesystem::temp_directory_path() /
                      ("moesim-bias-" + std::to_string(getpid()) + ".npy"))
                         .string();
};

double sigmoid_of(double logit) { return 1 / (1 + std::exp(-logit)); }

}  // namespace

TEST_CASE("group scores of DeepSeek-V2, DeepSeek-V3 and Megatron choose other groups") {
  RouterConfig one = parse_router("group-limited:2:1", 1);
  const std::vector<float> logits{2, -3, 1.8F, 1.7F};
  CHECK(experts_of(one, 4, logits) == std::set<int>{0});  // the best expert's group
  one.group_score = GroupScore::top2;                     // .06 + .44 beside .37 + .33
  CHECK(experts_of(one, 4, logits) == std::set<int>{2});

  // Logits of a group are added: 3 - 3 beside 1 + .5. Their exponentials: 20.1 beside 4.4.
  RouterConfig two = parse_router("group-limited:2:1", 2);
  const std::vector<float> wide{3, -3, 1, .5F};
  CHECK(experts_of(two, 4, wide) == std::set<int>{0, 1});
  apply_dialect(Dialect::megatron, two);
  CHECK(two.group_score == GroupScore::topk_logits);
  CHECK(experts_of(two, 4, wide) == std::set<int>{2, 3});
  two.group_score = GroupScore::topk;  // moe_router_pre_softmax
  CHECK(experts_of(two, 4, wide) == std::set<int>{0, 1});
}

TEST_CASE("groups of a bias-balanced router have the score of their two best, or of one") {
  RouterConfig config = parse_router("bias-balanced:0:0+groups:2:1", 1);
  CHECK(config.group_score == GroupScore::top2);
  const std::vector<float> logits{2, -3, 1.8F, 1.7F};
  CHECK(experts_of(config, 4, logits) == std::set<int>{2});
  config.group_score = GroupScore::max;
  CHECK(experts_of(config, 4, logits) == std::set<int>{0});
}

TEST_CASE("weights of Switch with two experts are normalised before drops") {
  // Shares .6 and .3 of softmax.
  const std::vector<float> logits{std::log(.6F), std::log(.3F), std::log(.1F)};
  RouterConfig config = parse_router("top2", 0);
  apply_dialect(Dialect::switch_transformer, config);
  CHECK(weight_of(config, 3, logits, 0) == Approx(2.0 / 3));
  config = parse_router("top1", 0);
  apply_dialect(Dialect::switch_transformer, config);
  CHECK(weight_of(config, 3, logits, 0) == Approx(.6));
}

TEST_CASE("weights of sigmoid scores: normalised for several experts, scaled") {
  const std::vector<float> logits{1, 0, -1, -2};
  RouterConfig config = parse_router("bias-balanced:0:0", 2);
  CHECK(weight_of(config, 4, logits, 0) == Approx(sigmoid_of(1) / (sigmoid_of(1) + .5)));
  config.weight_scale = Decimal::parse("2.5", "scale");
  CHECK(weight_of(config, 4, logits, 1) == Approx(2.5 * .5 / (sigmoid_of(1) + .5)));
  CHECK(weight_of(parse_router("bias-balanced:0:0", 1), 4, logits, 0) == Approx(sigmoid_of(1)));
}

TEST_CASE("a dialect weighs the routes of dropless too") {
  const std::vector<float> logits{std::log(.6F), std::log(.3F), std::log(.1F)};
  RouterConfig config = parse_router("dropless", 2);
  CHECK(weight_of(config, 3, logits, 0) == Approx(2.0 / 3));
  apply_dialect(Dialect::megablocks, config);
  CHECK(weight_of(config, 3, logits, 0) == Approx(.6));
}

TEST_CASE("a capacity is rounded up to a multiple") {
  RouterConfig config = parse_router("top2", 0);
  config.capacity_factor = Decimal(1);
  CHECK(config.capacity(1001, 8) == 126);
  config.capacity_alignment = 8;
  CHECK(config.capacity(1001, 8) == 128);
  CHECK(config.capacity(1024, 8) == 128);
}

TEST_CASE("blocks padded to the busiest expert drop nothing") {
  RouterConfig config = parse_router("top1", 0);
  config.padding = Padding::busiest;
  config.drops = false;
  config.capacity_alignment = 2;
  // Two ranks of three and one tokens: expert 0 has three from rank 0.
  const std::vector<float> first{1, 0, 1, 0, 1, 0};
  const std::vector<float> second{0, 1};
  const std::vector<RankLogits> ranks{{first, 3}, {second, 1}};
  const RoutedGroup group = route_group(config, 2, ranks);
  CHECK(group.exchanged_capacity == 4);
  CHECK(group.loss.failed == 0);
  CHECK(group.loss.padded == Approx(12.0 / 16));
}

TEST_CASE("scores are sigmoids with a capacity too") {
  RouterConfig config = parse_router("top1", 0);
  config.score_function = ScoreFunction::sigmoid;
  config.capacity_factor = Decimal::parse("0.5", "factor");
  config.priority = Priority::own_score;
  config.weights = Weights::raw;
  // By softmax token 0 is surer of expert 0 (.73 and .67), by sigmoid token 1 (.27 and .73).
  const std::vector<float> logits{-1, -2, 1, .3F, 0, .1F, 0, .1F};
  CHECK(experts_of(config, 2, logits, 0).empty());
  CHECK(experts_of(config, 2, logits, 1) == std::set<int>{0});
  config.score_function = ScoreFunction::softmax;
  CHECK(experts_of(config, 2, logits, 0) == std::set<int>{0});
  CHECK(experts_of(config, 2, logits, 1).empty());
}

TEST_CASE("a given bias decides the choice, not the weight") {
  const BiasFile file;
  const std::string& path = file.path;
  write_npy_float32(path, {4}, {0, 0, .4F, 0});
  for (const char* name : {"topk", "bias-balanced"}) {
    RouterConfig config = parse_router(name, 2);
    config.score_function =
        name == std::string("topk") ? ScoreFunction::sigmoid : ScoreFunction::softmax;
    config.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::load(path));
    const std::vector<float> logits{1, .5F, 0, -1};
    CAPTURE(name);
    CHECK(experts_of(config, 4, logits) == std::set<int>{0, 2});
    CHECK(weight_of(config, 4, logits, 2) == Approx(.5 / (.5 + sigmoid_of(1))));
  }
  // Softmax: .46 .28 .17 .06.
  RouterConfig config = parse_router("top1", 0);
  config.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::load(path));
  CHECK(experts_of(config, 4, {1, .5F, 0, -1}) == std::set<int>{2});
  CHECK_THROWS_WITH(experts_of(config, 2, {1, 0}),
                    ContainsSubstring("has 4 experts, the router 2"));
  write_npy_float32(path, {1, 2, 2}, {0, 0, 0, 0});
  CHECK_THROWS_WITH(ExpertBias::load(path), ContainsSubstring("[experts] or [layers, experts]"));
  write_npy_float32(path, {2}, {0, NAN});
  CHECK_THROWS_WITH(ExpertBias::load(path), ContainsSubstring("expert 1"));
}

TEST_CASE("logits of a router in bf16 tie where fp32 tells them apart") {
  RouterConfig config = parse_router("top1", 0);
  // Steps of bf16 are 2^-7 from 1 to 2.
  const std::vector<float> logits{1, 1.003F};
  CHECK(experts_of(config, 2, logits) == std::set<int>{1});
  config.router_dtype = RouterDtype::bf16;
  CHECK(experts_of(config, 2, logits) == std::set<int>{0});
  CHECK(experts_of(config, 2, {1, 1.005F}) == std::set<int>{1});
  // A tie between two steps goes to the even one: 1 + 3/256 is 1 + 2/128, 1 + 1/256 is 1.
  CHECK(experts_of(config, 2, {1.0078125F, 1.01171875F}) == std::set<int>{1});
  CHECK(experts_of(config, 2, {1, 1.00390625F}) == std::set<int>{0});
}

TEST_CASE("a sampled second expert has its share of the rest") {
  RouterConfig config = parse_router("top2", 0);
  config.drops = false;
  config.second_expert = SecondExpert::sampled;
  constexpr std::size_t tokens = 40000;
  std::vector<float> logits;
  for (std::size_t token = 0; token < tokens; ++token) {
    logits.insert(logits.end(), {std::log(.5F), std::log(.3F), std::log(.15F), std::log(.05F)});
  }
  std::vector<double> seconds(4, 0.0);
  for (const Route& route : routes_of(config, 4, logits)) {
    if (route.choice == 0) CHECK(route.expert == 0);
    if (route.choice == 1) ++seconds[static_cast<std::size_t>(route.expert)];
  }
  const double expected[] = {0, .6, .3, .1};
  for (std::size_t expert = 0; expert < 4; ++expert) {
    const double share = expected[expert];
    // Five standard errors.
    CHECK(std::abs(seconds[expert] / tokens - share) <=
          5 * std::sqrt(share * (1 - share) / tokens));
  }
  config = parse_router("topk", 3);
  config.second_expert = SecondExpert::sampled;
  CHECK_THROWS_WITH(experts_of(config, 4, {0, 1, 2, 3}), ContainsSubstring("--second-expert"));
}

TEST_CASE("Sinkhorn chooses by costs that are scaled to equal sums") {
  constexpr std::size_t tokens = 96;
  constexpr std::size_t experts = 8;
  const std::vector<float> logits = random_logits(tokens, experts);
  // The rule again, in double.
  std::vector<double> of_expert(experts, 1.0);
  for (double change = 1; change > 1e-4;) {
    std::vector<double> sums(experts, 0.0);
    for (std::size_t token = 0; token < tokens; ++token) {
      double sum = 0;
      const float* row = logits.data() + token * experts;
      for (std::size_t e = 0; e < experts; ++e)
        sum += of_expert[e] * std::exp(static_cast<double>(row[e]));
      for (std::size_t e = 0; e < experts; ++e) {
        sums[e] += std::exp(static_cast<double>(row[e])) / (tokens * (sum + 1e-8));
      }
    }
    change = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      const double next = 1 / (experts * (sums[e] + 1e-8));
      change += std::abs(next - of_expert[e]) / experts;
      of_expert[e] = next;
    }
  }
  const RouterConfig config = parse_router("sinkhorn", 2);
  std::vector<int> load(experts, 0);
  std::vector<std::set<int>> chosen(tokens);
  for (const Route& route : routes_of(config, static_cast<int>(experts), logits)) {
    ++load[static_cast<std::size_t>(route.expert)];
    chosen[static_cast<std::size_t>(route.token)].insert(route.expert);
  }
  for (std::size_t token = 0; token < tokens; ++token) {
    std::vector<std::pair<double, int>> costs;
    for (std::size_t e = 0; e < experts; ++e) {
      costs.emplace_back(of_expert[e] * std::exp(static_cast<double>(logits[token * experts + e])),
                         static_cast<int>(e));
    }
    std::sort(costs.rbegin(), costs.rend());
    CAPTURE(token);
    CHECK(chosen[token] == std::set<int>{costs[0].second, costs[1].second});
  }
  // Popular experts 0 and 1 would have about twice the others' load.
  CHECK(*std::max_element(load.begin(), load.end()) < 2 * tokens * 1.35 / experts);

  RouterConfig greedy = parse_router("sinkhorn:greedy", 1);
  const std::vector<float> one{1, 0};
  CHECK(weight_of(greedy, 2, one, 0) == Approx(sigmoid_of(1)));
  greedy = parse_router("sinkhorn", 2);
  CHECK(weight_of(greedy, 2, one, 0) == Approx(sigmoid_of(1)));  // softmax of two
}
