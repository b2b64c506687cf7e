#include "sim/model/memory/stage_weights.hpp"

#include <cmath>

#include "tests/support/catch.hpp"
#include "tests/support/stage_examples.hpp"

using namespace moesim::model;

namespace {

// The share of a stage among `stages`, layers spread evenly, with what the fullest one also has.
StageContent fullest_stage(const Model& model, int stages) {
  StageContent content = layers_of(model, 0, model.layers);
  content.dense_layers /= stages;
  content.moe_layers /= stages;
  content.embedding = true;
  content.head = stages == 1;
  return content;
}

}  // namespace

TEST_CASE("static memory is that of Megatron's estimate") {
  // megatron/training/theoretical_memory_usage.py, run: total parameters, those on the fullest rank
  // (both in B), and GiB of weights, fp32 gradients and the sharded optimizer. It counts a
  // prediction depth as one more layer on every rank, without the projection of 2 h^2.
  struct Row {
    const char* name;
    int gpus, tensor, stages, expert, depths;
    double total, on_rank, memory;
  };
  const Row rows[] = {{"deepseek-v3", 256, 1, 8, 32, 0, 671.03, 5.3890, 59.65},
                      {"deepseek-v3", 256, 1, 16, 8, 1, 682.53, 8.6316, 86.13},
                      {"qwen3-30b-a3b", 8, 1, 1, 8, 0, 30.53, 5.1650, 71.51},
                      {"qwen3-235b-a22b", 256, 2, 8, 32, 0, 235.09, 1.6234, 19.50},
                      {"mixtral-8x22b", 128, 2, 8, 8, 0, 140.63, 2.5233, 26.48}};
  for (const Row& row : rows) {
    CAPTURE(row.name, row.stages);
    const Model model = Model::load(row.name);
    const int experts = model.moe->experts;
    StageContent all = whole(model);
    all.moe_layers += row.depths;
    const StageParameters total = stage_parameters(model, all, {}, experts);
    CHECK(rounds_to((total.dense + total.expert) * 1e-9, row.total, 0.01));
    if (row.depths == 0) {
      CHECK(total.dense + total.expert == static_cast<double>(model.total_parameters(experts)));
    }
    const ShardSizes shards = shards_of(row.gpus, row.tensor, row.stages, row.expert);
    StageContent content = fullest_stage(model, row.stages);
    content.moe_layers += row.depths;
    const StageParameters stage = stage_parameters(model, content, shards, experts);
    CHECK(rounds_to((stage.dense + stage.expert) * 1e-9, row.on_rank, 0.0001));
    const double bytes = state_bytes(stage, shards, {}).total();
    CHECK(rounds_to(bytes / gib, row.memory, 0.01));
    const double formula =
        stage.dense * (6 + 12.0 / shards.data) + stage.expert * (6 + 12.0 / shards.expert_data);
    CHECK(bytes == Approx(formula).epsilon(1e-12));
  }
}

TEST_CASE("a prediction depth is a layer, a projection and three norms") {
  const Model model = Model::load("deepseek-v3");
  StageContent depth;
  depth.mtp_depths = 1;
  depth.embedding = true;
  StageContent layer;
  layer.moe_layers = 1;
  layer.embedding = true;
  const StageParameters one = stage_parameters(model, depth, {}, 256);
  const StageParameters other = stage_parameters(model, layer, {}, 256);
  CHECK(one.expert == other.expert);
  CHECK(one.dense - other.dense == 2.0 * 7168 * 7168 + 3 * 7168);
}

TEST_CASE("copies of experts leave the router as wide as it is") {
  const Model model = Model::load("deepseek-v3");
  StageContent stage;
  stage.moe_layers = stage.mtp_depths = 1;
  const StageParameters alone = stage_parameters(model, stage, {}, 256);
  const StageParameters with_copies = stage_parameters(model, stage, {}, 256 + 32);
  CHECK(with_copies.dense == alone.dense);  // experts have scores, their copies share them
  CHECK(with_copies.expert == alone.expert * (256 + 32) / 256);
}

TEST_CASE("prediction depths without the embedding beside them have a copy of it") {
  Model model = Model::load("deepseek-v3");
  const double matrix = 129280.0 * 7168;
  const auto dense = [&](bool embedding, bool head, bool beside = false) {
    StageContent content;
    content.mtp_depths = 1;
    content.embedding = embedding;
    content.head = head;
    content.embedding_beside = beside;
    return stage_parameters(model, content, {}, 256).dense;
  };
  const double depth = dense(false, false, true);
  CHECK(dense(false, false) - depth == matrix);  // 0.9267 B, 5.34 GiB at 6 + 12 / 64 bytes
  CHECK(dense(true, false) == dense(false, false));
  CHECK(dense(false, true) - depth == 2 * matrix + 7168);  // the head, with the final norm
  model.tied_embedding = true;
  CHECK(dense(false, true) - depth == matrix + 7168);
}

TEST_CASE("other optimizers and ZeRO stages") {
  const StageParameters stage{.dense = 1e9, .expert = 2e9, .gemm = 1e9};
  ShardSizes shards;
  shards.data = 4;
  shards.context = 2;
  shards.expert_data = 2;
  const auto bytes = [&](const StateRules& rules) {
    return state_bytes(stage, shards, rules).total();
  };
  CHECK(bytes({.zero = 0}) == 18 * 3e9);
  CHECK(bytes({}) == 1e9 * (6 + 12.0 / 8) + 2e9 * (6 + 12.0 / 2));
  CHECK(bytes({.zero = 2}) == 1e9 * (2 + 16.0 / 8) + 2e9 * (2 + 16.0 / 2));
  CHECK(bytes({.zero = 3}) == 18 * (1e9 / 8 + 2e9 / 2));
  CHECK(bytes({.moment_bytes = 2}) == 1e9 * (6 + 8.0 / 8) + 2e9 * (6 + 8.0 / 2));
  // One byte of FP8 beside the bf16 copy, or instead of it.
  CHECK(bytes({.precision = Precision::fp8_current}) == bytes({}) + 3e9);
  CHECK(bytes({.precision = Precision::fp8_current, .low_precision_gather = true}) ==
        bytes({}) - 3e9);
  // ZeRO 3 gathers two layers of DeepSeek-V3: 11.5 B parameters each on one rank.
  const Model model = Model::load("deepseek-v3");
  const ShardSizes replicated{.data = 2, .expert_data = 2};
  const double gathered = gathered_layers(model, whole(model), replicated, {}, 256);
  CHECK(gathered * 1e-9 == Approx(2 * 2 * 11.507).margin(0.005));
  // What has no replica lies whole where it is: 256 experts of 3 x 7168 x 2048, then all.
  const double experts = 2.0 * 2 * 256 * 3 * 7168 * 2048;
  const StageContent last = layers_of(model, 59, 2);
  CHECK(gathered - gathered_layers(model, last, {.data = 2}, {}, 256) == Approx(experts));
  // Without its experts an MoE layer is smaller than a dense one, of which the first stage has two
  // neighbours: 3 x 7168 x 18432 over the shared expert's 3 x 7168 x 2048 and a router.
  const double wider = 2.0 * 7168 * (3 * (18432 - 2048) - 256);
  CHECK(gathered_layers(model, layers_of(model, 0, 4), {.data = 2}, {}, 256) ==
        Approx(gathered - experts + 2 * wider));
  CHECK(gathered_layers(model, layers_of(model, 2, 4), {.data = 2}, {}, 256) ==
        Approx(gathered - experts + wider));
  CHECK(gathered_layers(model, whole(model), {}, {}, 256) == 0);
  // Embedding and head stand beside the first and the last layer; a prediction depth between the
  // embedding, which it reads, and the head.
  const ShardSizes thin{.expert = 256, .data = 2, .expert_data = 2};
  const auto ends = [&](bool embedding, bool head, int depths, int moe_layers) {
    StageContent content;
    content.embedding = embedding;
    content.head = head;
    content.mtp_depths = depths;
    content.moe_layers = moe_layers;
    return gathered_layers(model, content, thin, {}, 256);
  };
  const double matrix = 2.0 * 129280 * 7168;
  const double norm = 2.0 * 7168;
  const double layer = ends(false, false, 0, 1);
  CHECK(ends(false, false, 0, 2) == 2 * layer);
  CHECK(layer < matrix);
  CHECK(ends(true, false, 0, 2) == matrix + layer);
  CHECK(ends(false, true, 0, 2) == matrix + norm + layer);
  CHECK(ends(true, true, 0, 0) == matrix + norm);  // alone in their chunks
  const double whole_depth = layer + 2.0 * 2 * 7168 * 7168 + 3 * norm;
  CHECK(ends(false, false, 1, 2) == matrix + whole_depth);
  CHECK(ends(false, true, 1, 2) == matrix + norm + whole_depth);
  // Replicas of different optimizer instances share nothing: they have the experts whole, or all.
  const StateRules instances{.optimizer_instances = 2};
  CHECK(gathered_layers(model, last, {.data = 4, .expert_data = 2}, instances, 256) ==
        gathered_layers(model, last, {.data = 2}, {}, 256));
  CHECK(gathered_layers(model, last, replicated, instances, 256) == 0);
}

TEST_CASE("tensor ranks beyond the key-value heads repeat them") {
  const Model model = Model::load("llama3-70b");  // 8 key-value heads
  StageContent layer;
  layer.dense_layers = 1;
  ShardSizes shards;
  shards.tensor = 16;
  const double rank = stage_parameters(model, layer, shards, 0).dense;
  const double queries_and_output = 2.0 * 8192 * 8192;
  CHECK(rank == (queries_and_output + 3.0 * 8192 * 28672) / 16 + 2.0 * 8192 * 128 + 2 * 8192);
}
