// bias-balanced, alone and inside groups.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/routing/groups/group_logits.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/simulation/imbalance.hpp"
#include "sim/routing/tokens/softmax.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"
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

TEST_CASE("a bias takes the step's size per step off the overloaded expert") {
  // All 16 tokens prefer expert 0 by sigmoid(0.1) - sigmoid(0) = 0.02498. After n steps expert 0
  // has bias -n u and expert 1 +n u, until 2 n u exceeds the difference.
  Logits logits{{}};
  for (int token = 0; token < 16; ++token) logits[0].insert(logits[0].end(), {0.1F, 0.0F});
  const auto expert_after = [&](const char* router) {
    return kept_experts(route(make(router, 1), 2, logits), 0, 0).at(0);
  };
  CHECK(expert_after("bias-balanced:0.02:0") == 0);
  CHECK(expert_after("bias-balanced:0.012:1") == 0);  // 0.024
  CHECK(expert_after("bias-balanced:0.013:1") == 1);  // 0.026
  CHECK(expert_after("bias-balanced:0.01:2") == 1);   // 0.04, the load was on expert 0 twice
  CHECK(expert_after("bias-balanced:0.02:2") == 0);   // there and back
  // The weight knows the score alone: two experts of scores 0.52498 and 0.5.
  const RoutedGroup both = route(make("bias-balanced:0.02:1", 2), 2, logits);
  CHECK(both.routes()[0].expert == 0);
  CHECK(both.routes()[0].weight == Approx(0.52498 / 1.02498).epsilon(1e-4));
}

TEST_CASE("groups of sigmoid scores: the sum of two decides, the weights know the score alone") {
  // Sigmoids: 0.9526 and 0.0001 against 0.5498 twice. By softmax the first pair would win, 20.09
  // against 2.44.
  const Logits logits{{3, -9, 0.2F, 0.2F}};
  const RoutedGroup group = route(make("bias-balanced:0.01:0+groups:2:1", 2), 4, logits);
  CHECK(kept_experts(group, 0, 0) == std::vector<int>{2, 3});
  CHECK(group.routes()[0].weight == Approx(0.5).epsilon(1e-6));
  CHECK(kept_experts(route(make("group-limited:2:1", 2), 4, logits), 0, 0) ==
        std::vector<int>{0, 1});
  // Relative to the two best of all, 0.9526 + 0.5498.
  CHECK(group.loss.residual_loss == Approx(1 - 2 * 0.549834 / (0.952574 + 0.549834)).epsilon(1e-5));
  // A step of 0.15 takes as much from experts 2 and 3 as it gives the others: 0.3998 twice against
  // 1.1026 and 0.1501, and the weights are 0.9526 and 0.0001 over their sum.
  const RoutedGroup moved = route(make("bias-balanced:0.15:1+groups:2:1", 2), 4, logits);
  CHECK(kept_experts(moved, 0, 0) == std::vector<int>{0, 1});
  CHECK(moved.routes()[0].weight == Approx(0.952574 / (0.952574 + 0.000123)).epsilon(1e-5));
}

TEST_CASE("DeepSeek-V3's router: top-8 of 256 experts in 4 of 8 groups, as its model code has it") {
  constexpr int experts = 256;
  constexpr int per_group = 32;
  const Logits logits = random_logits(experts, {40, 21}, 5);
  const RoutedGroup group = route(make("bias-balanced:0.001:0+groups:8:4", 8), experts, logits);
  for (int rank = 0; rank < 2; ++rank) {
    const auto& rows = logits[static_cast<std::size_t>(rank)];
    for (int token = 0; token < static_cast<int>(rows.size()) / experts; ++token) {
      const float* row = rows.data() + token * experts;
      const auto score = [&](int expert) { return 1 / (1 + std::exp(-double{row[expert]})); };
      std::vector<std::pair<double, int>> groups;  // minus the two best scores, group
      for (int index = 0; index < 8; ++index) {
        std::vector<double> scores;
        for (int at = 0; at < per_group; ++at) scores.push_back(score(index * per_group + at));
        std::sort(scores.rbegin(), scores.rend());
        groups.emplace_back(-(scores[0] + scores[1]), index);
      }
      std::sort(groups.begin(), groups.end());
      std::vector<std::pair<double, int>> offered;
      for (std::size_t kept = 0; kept < 4; ++kept) {
        for (int at = 0; at < per_group; ++at) {
          const int expert = groups[kept].second * per_group + at;
          offered.emplace_back(-score(expert), expert);
        }
      }
      std::sort(offered.begin(), offered.end());
      std::vector<int> expected;
      for (std::size_t choice = 0; choice < 8; ++choice) expected.push_back(offered[choice].second);
      CHECK(kept_experts(group, rank, token) == expected);
    }
  }
}

TEST_CASE("all groups kept is the bias-balanced router without groups") {
  const Logits logits = random_logits(8, {50, 50}, 3);
  const RoutedGroup limited = route(make("bias-balanced:0.01:7+groups:4:4", 2), 8, logits);
  const RoutedGroup free = route(make("bias-balanced:0.01:7", 2), 8, logits);
  CHECK(limited.routes() == free.routes());
}

TEST_CASE("biases of many steps balance a skewed source") {
  const auto busiest = [](const std::string& router) {
    const ReplicaRouting routing = simulate_routing(small_job(router, 2), 0);
    double most = 0;
    for (const LayerRouting& layer : routing.layers) {
      const std::int64_t all =
          std::accumulate(layer.demand.begin(), layer.demand.end(), std::int64_t{0});
      CHECK(all == 8 * 1024 * 2);
      most = std::max(
          most, static_cast<double>(*std::max_element(layer.demand.begin(), layer.demand.end())) *
                    8 / static_cast<double>(all));
    }
    return most;
  };
  // 2,048 routes an expert: chance alone gives 1 + 1.4 / sqrt(2048) = 1.03 for the busiest of
  // eight.
  CHECK(busiest("dropless") > 1.2);
  CHECK(busiest("bias-balanced:0.001:1000") < 1.1);
  CHECK(busiest("bias-balanced:0.001:1000+groups:4:2") < 1.1);
}

TEST_CASE("sigmoids with a bias are those of one token at every instruction set") {
  constexpr int experts = 7;
  const std::vector<float> bias{0, 0.5F, -0.25F, 1e-3F, 0, -1, 2};
  std::vector<float> logits;
  for (int at = 0; at < experts * tile_tokens; ++at) {
    logits.push_back(static_cast<float>(at - 50) * 0.9F);  // -45 to 54.9
  }
  logits[3] = -std::numeric_limits<float>::infinity();
  logits[20] = -0.0F;
  logits[40] = -200;  // exp(-200) is no float
  for (const SimdLevel level : available_simd_levels()) {
    std::vector<float> tile = logits;
    std::vector<float> scores(tile.size());
    tile_kernels(level).biased_sigmoids(tile.data(), experts, bias.data(), scores.data());
    for (std::size_t at = 0; at < tile.size(); ++at) {
      const float score = sigmoid(logits[at]);
      CHECK(scores[at] == score);
      CHECK(tile[at] ==
            (at == 3 ? std::numeric_limits<float>::lowest() : score + bias[at / tile_tokens]));
    }
  }
}

namespace {

// Gini of the demand over 16 layers of 2 replicas: means of 32 that are the same but for chance,
// within 3.5 standard errors of their difference. `whole` has 256 steps, which are carried out one
// by one; `settled` one more, of which the last 128 are, from where the biases settle.
void check_ends_alike(const std::string& source, const std::string& speed,
                      const std::string& groups) {
  const auto ginis = [&](const std::string& steps) {
    RoutingJob job = small_job("bias-balanced:" + speed + ":" + steps + groups, 2);
    job.scores = parse_score_source(source, "--routing");
    job.layers = 16;
    std::vector<double> values;
    for (int replica = 0; replica < 2; ++replica) {
      for (const LayerRouting& layer : simulate_routing(job, replica).layers) {
        values.push_back(imbalance(layer.demand).gini);
      }
    }
    return values;
  };
  const auto mean_and_error = [](const std::vector<double>& values) {
    const auto count = static_cast<double>(values.size());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    return std::pair(mean, std::sqrt(squares / (count - 1) / count));
  };
  const auto [whole, error] = mean_and_error(ginis("256"));
  const auto [settled, other] = mean_and_error(ginis("257"));
  const auto [unbiased, unused] = mean_and_error(ginis("0"));
  INFO(source << groups << ": " << whole << " +- " << error << ", settled " << settled << " +- "
              << other << ", no bias " << unbiased);
  CHECK(std::abs(whole - settled) < 3.5 * std::hypot(error, other));
  CHECK(unbiased > 3 * whole);
}

// Tokens of normal noise around an offset of each expert, `reach` apart; counts the training
// tiles that are asked for.
class SlopedLogits final : public GroupLogits {
 public:
  SlopedLogits(int experts, float reach) : experts_(experts), logits_{{}} {
    logits_ = random_logits(experts, {4096}, 11);
    for (std::size_t at = 0; at < logits_[0].size(); ++at) {
      const auto expert = static_cast<float>(at % static_cast<std::size_t>(experts));
      logits_[0][at] += reach * (expert / static_cast<float>(experts - 1) - 0.5F);
    }
    rows_ = {{logits_[0], 4096}};
  }

  int experts() const override { return experts_; }
  int ranks() const override { return 1; }
  std::int64_t tokens(int /*rank*/) const override { return 4096; }
  void fill_tile(int rank, std::int64_t first_token, float* tile) const override {
    GivenLogits(rows_, experts_, tile_kernels(best_simd_level()))
        .fill_tile(rank, first_token, tile);
  }
  int fill_training_tile(std::int64_t index, float* tile) const override {
    ++asked_;
    fill_tile(0, index % 256 * tile_tokens, tile);
    return tile_tokens;
  }
  std::int64_t asked() const { return asked_; }

 private:
  int experts_;
  Logits logits_;
  std::vector<RankLogits> rows_;
  mutable std::int64_t asked_ = 0;
};

}  // namespace

TEST_CASE("a training that starts where biases settle ends like one from the start") {
  for (const std::string groups : {"", "+groups:4:2"}) {
    check_ends_alike("gaussian:0.1", "0.001", groups);
    // Thresholds of most layers are 0.5 to 1 apart, of a reach of 1.02.
    check_ends_alike("gaussian:1.5", "0.004", groups);
  }
}

// A step is 512 tokens, 32 tiles; 256 tiles tell where the biases settle, and of 1,000 steps the
// last 128 are carried out, after 32 longer ones where the experts are far apart: thresholds of
// about sigmoid(1.15 - 2) and sigmoid(1.15 + 2), of a share of 1/8 of normal noise.
TEST_CASE("the training of biases takes as long whatever the popularity") {
  const RouterConfig config = make("bias-balanced:0.001:1000", 2);
  for (const auto& [reach, steps] : {std::pair(0.5F, 128), std::pair(4.0F, 160)}) {
    const SlopedLogits logits(16, reach);
    const auto router = make_kind_router({config, 16, 1, tile_kernels(best_simd_level())});
    router->start_layer(logits, {});
    CHECK(logits.asked() == 256 + 32 * steps);
    router->decide(logits, {});
    const std::vector<std::int64_t>& demand = router->outcome().demand;
    // 4,096 tokens of 2 choices: 512 an expert. The most popular one's sigmoid is nearly flat: a
    // step of its bias changes its load by 4 %, and the last few steps have not one direction.
    CHECK(*std::max_element(demand.begin(), demand.end()) < 640);
    CHECK(*std::min_element(demand.begin(), demand.end()) > 384);
  }
}

// From hot-expert:30 at E = 8 the threshold of the hot expert lies so far off that 300 steps of
// 1e-4, 0.03 in all, do not reach it: the load stays.
TEST_CASE("a bias goes no further than its steps take it") {
  RoutingJob job = small_job("bias-balanced:0.0001:300", 2);
  job.scores = parse_score_source("hot-expert:30", "--routing");
  const auto busiest = [](const RoutingJob& of) {
    const std::vector<std::int64_t> demand = simulate_routing(of, 0).layers[0].demand;
    return *std::max_element(demand.begin(), demand.end());
  };
  const std::int64_t slow = busiest(job);
  job.router = make("bias-balanced:0.01:300", 2);
  CHECK(slow > 3 * busiest(job) / 2);
}
