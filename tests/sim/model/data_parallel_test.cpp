#include "sim/model/data_parallel.hpp"

#include <cmath>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

// DeepSeek-V3 with layers spread evenly over `stages`, EP 32.
StageParameters mean_stage(const Model& model, int stages, const ShardSizes& shards) {
  StageContent content;
  content.dense_layers = 3.0 / stages;
  content.moe_layers = 58.0 / stages;
  return stage_parameters(model, content, shards, 256);
}

double gb(double bytes) { return bytes * 1e-9; }

}  // namespace

TEST_CASE("expert gradients of DeepSeek-V3 cost what the ranks of their group make of them") {
  const Model model = Model::load("deepseek-v3");
  // 653.9 B in experts: 58 x 256 x 3 x 7,168 x 2,048.
  CHECK(58.0 * 256 * static_cast<double>(model.expert_parameters()) * 1e-9 ==
        Approx(653.9).margin(0.05));
  ShardSizes shards;
  shards.expert = 32;
  shards.data = 128;
  shards.expert_data = 4;  // 256 GPUs, 2 stages
  const StageParameters two = mean_stage(model, 2, shards);
  CHECK(two.expert * 1e-9 == Approx(10.217).margin(0.0005));
  CHECK(gb(gradient_bytes(two, shards, {}).expert) == Approx(30.65).margin(0.005));
  CHECK(gb(weight_bytes(two, shards, {}).expert) == Approx(15.33).margin(0.005));
  shards.expert_data = 64;  // 4,096 GPUs
  CHECK(gb(gradient_bytes(two, shards, {}).expert) == Approx(40.23).margin(0.005));
  CHECK(gb(weight_bytes(two, shards, {}).expert) == Approx(20.12).margin(0.005));
  CHECK(gb(gradient_bytes(two, shards, {}).expert) / 50 ==
        Approx(0.8).margin(0.05));  // s at 50 GB/s
  CHECK(gb(weight_bytes(two, shards, {}).expert) / 50 == Approx(0.4).margin(0.05));
  shards.expert_data = 1;  // 8 stages on 256 GPUs
  CHECK(gradient_bytes(mean_stage(model, 8, shards), shards, {}).expert == 0);
  CHECK(weight_bytes(mean_stage(model, 8, shards), shards, {}).expert == 0);
}

TEST_CASE("gradients and weights in fewer bytes") {
  const Model model = Model::load("deepseek-v3");
  ShardSizes shards;
  shards.expert = 32;
  shards.data = shards.expert_data = 4;
  const StageParameters stage = mean_stage(model, 2, shards);
  DataParallelRules rules;
  const double full = gradient_bytes(stage, shards, rules).total();
  rules.gradient_bytes = 2;
  CHECK(gradient_bytes(stage, shards, rules).total() == full / 2);
  // Half for what GEMMs read; router and norms stay bf16.
  const DataParallelBytes wide = weight_bytes(stage, shards, rules);
  rules.states.precision = Precision::fp8_current;
  CHECK(weight_bytes(stage, shards, rules).total() == wide.total());
  rules.states.low_precision_gather = true;
  CHECK(weight_bytes(stage, shards, rules).expert == wide.expert / 2);
  CHECK(weight_bytes(stage, shards, rules).dense == Approx((2 * stage.dense - stage.gemm) * 3 / 4));
}

TEST_CASE("Adam's share falls as one over all GPUs") {
  const Model model = Model::load("deepseek-v3");
  CHECK(adam_bytes({}) == 30);
  CHECK(adam_bytes({.moment_bytes = 2}) == 22);
  // 256 GPUs as 8 stages of EP 32, and 4,096 as 2 stages: 78.6 and 4.9 GB on average over stages.
  ShardSizes shards;
  shards.expert = 32;
  for (const auto& [gpus, stages, expected] :
       {std::tuple{256, 8, 78.6}, {256, 2, 78.6}, {4096, 2, 4.9}}) {
    CAPTURE(gpus, stages);
    shards.data = gpus / stages;
    shards.expert_data = gpus / stages / 32;
    StageParameters mean = mean_stage(model, stages, shards);
    mean.dense += 2.0 * 7168 * 129280 / stages;  // embedding and head
    CHECK(gb(adam_bytes({}) * owned_parameters(mean, shards, {})) == Approx(expected).margin(0.05));
    // Clearing gradients does not shrink with more GPUs.
    CHECK(clear_gradient_bytes(mean, shards, {}) == 4 * (mean.dense + mean.expert));
  }
}

TEST_CASE("what each ZeRO stage sends") {
  const StageParameters stage{.dense = 1e9, .expert = 3e9, .gemm = 1e9};
  ShardSizes shards;
  shards.data = 4;
  shards.context = 2;
  shards.expert_data = 2;
  DataParallelRules rules;
  rules.micro_batches = 5;
  const double gradients = 4 * (1e9 * 7 / 8 + 3e9 / 2);
  const double weights = 2 * (1e9 * 7 / 8 + 3e9 / 2);
  struct Row {
    int zero;
    double gradients;
    double weights;
  };
  for (const Row& row : {Row{0, 2, 0}, Row{1, 1, 1}, Row{2, 5, 1}, Row{3, 5, 10}}) {
    CAPTURE(row.zero);
    rules.states.zero = row.zero;
    CHECK(gradient_bytes(stage, shards, rules).total() == row.gradients * gradients);
    CHECK(weight_bytes(stage, shards, rules).total() == row.weights * weights);
  }
  CHECK(owned_parameters(stage, shards, {.zero = 0}) == 4e9);
  CHECK(clear_gradient_bytes(stage, shards, {.zero = 2}) == 4 * (1e9 / 8 + 3e9 / 2));
}

TEST_CASE("instances of the optimizer reduce inside and then across") {
  const StageParameters stage{.dense = 1e9, .expert = 0, .gemm = 1e9};
  ShardSizes shards;
  shards.data = 8;
  DataParallelRules rules;
  rules.states.optimizer_instances = 2;
  // 4 n 3/4 inside four, then an all-reduce of a quarter over two: 2 x n x 1/2.
  CHECK(gradient_bytes(stage, shards, rules).dense == 3e9 + 1e9);
  CHECK(weight_bytes(stage, shards, rules).dense == 2e9 * 3 / 4);
  rules.states.optimizer_instances = 3;
  CHECK_THROWS_WITH(gradient_bytes(stage, shards, rules), ContainsSubstring("3 optimizer"));
}
