#include "sim/model/memory/data_parallel.hpp"

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

// What a rank sends of a buffer in a reduce-scatter or an all-gather over `ranks`.
double sent_gb(double bytes, int ranks) { return gb(bytes) * (ranks - 1) / ranks; }

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
  const double gradients = reduced_bytes(two, {}).expert;
  const double weights = gathered_bytes(two, {}).expert;
  CHECK(sent_gb(gradients, 4) == Approx(30.65).margin(0.005));
  CHECK(sent_gb(weights, 4) == Approx(15.33).margin(0.005));
  CHECK(sent_gb(gradients, 64) == Approx(40.23).margin(0.005));  // 4,096 GPUs
  CHECK(sent_gb(weights, 64) == Approx(20.12).margin(0.005));
  CHECK(sent_gb(gradients, 64) / 50 == Approx(0.8).margin(0.05));  // s at 50 GB/s
  CHECK(sent_gb(weights, 64) / 50 == Approx(0.4).margin(0.05));
}

TEST_CASE("gradients and weights in fewer bytes") {
  const Model model = Model::load("deepseek-v3");
  ShardSizes shards;
  shards.expert = 32;
  shards.data = shards.expert_data = 4;
  const StageParameters stage = mean_stage(model, 2, shards);
  CHECK(reduced_bytes(stage, {}).dense == 4 * stage.dense);
  CHECK(reduced_bytes(stage, {.gradient_bytes = 2}).dense == 2 * stage.dense);
  CHECK(reduced_bytes(stage, {.gradient_bytes = 2}).expert == 2 * stage.expert);
  // Half for what GEMMs read; router and norms stay bf16.
  const BufferBytes wide = gathered_bytes(stage, {});
  CHECK(wide.dense == Approx(2 * stage.dense));
  StateRules rules;
  rules.precision = Precision::fp8_current;
  CHECK(gathered_bytes(stage, rules).dense == wide.dense);
  rules.low_precision_gather = true;
  CHECK(gathered_bytes(stage, rules).expert == wide.expert / 2);
  CHECK(gathered_bytes(stage, rules).dense == Approx(2 * stage.dense - stage.gemm));
}

TEST_CASE("Adam's share falls as one over all GPUs") {
  const Model model = Model::load("deepseek-v3");
  CHECK(adam_bytes({}) == 30);
  CHECK(adam_bytes({.moment_bytes = 2}) == 22);
  // Casts of weights: bf16 read, one copy or two written; or the second one made from the first.
  CHECK(weight_cast_bytes({}) == 0);
  CHECK(weight_cast_bytes({.precision = Precision::fp8_delayed}) == 3);
  CHECK(weight_cast_bytes({.precision = Precision::fp8_current, .transposed_copies = true}) == 6);
  CHECK(weight_cast_bytes({.precision = Precision::fp8_block}) == 4);
  CHECK(weight_cast_bytes({.precision = Precision::fp8_delayed, .low_precision_gather = true}) ==
        0);
  CHECK(weight_cast_bytes({.precision = Precision::fp8_delayed,
                           .low_precision_gather = true,
                           .transposed_copies = true}) == 2);
  const StageParameters weights{.dense = 10, .expert = 100, .gemm = 8};
  CHECK(optimizer_bytes(weights, {}, {.precision = Precision::fp8_block}) -
            optimizer_bytes(weights, {}, {}) ==
        4 * 108);
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

TEST_CASE("from ZeRO 1 on a rank updates, from ZeRO 2 on it clears, only its share") {
  const StageParameters stage{.dense = 1e9, .expert = 3e9, .gemm = 1e9};
  ShardSizes shards;
  shards.data = 4;
  shards.context = 2;
  shards.expert_data = 2;
  const double share = 1e9 / 8 + 3e9 / 2;
  CHECK(owned_parameters(stage, shards, {.zero = 0}) == 4e9);
  CHECK(owned_parameters(stage, shards, {.zero = 1}) == share);
  CHECK(clear_gradient_bytes(stage, shards, {.zero = 1}) == 16e9);
  CHECK(clear_gradient_bytes(stage, shards, {.zero = 2}) == 4 * share);
  CHECK_THROWS_WITH(owned_parameters(stage, shards, {.optimizer_instances = 3}),
                    ContainsSubstring("3 optimizer"));
}
