#include "sim/model/training_memory.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

constexpr double gib = 1024.0 * 1024 * 1024;

ShardSizes shards_of(int gpus, int tensor, int stages, int expert) {
  ShardSizes shards;
  shards.tensor = tensor;
  shards.expert = expert;
  shards.data = gpus / tensor / stages;
  shards.expert_data = gpus / expert / stages;
  return shards;
}

// The share of a stage among `stages`, layers spread evenly, with what the fullest one also has.
StageContent fullest_stage(const Model& model, int stages) {
  StageContent content = layers_of(model, 0, model.layers);
  content.dense_layers /= stages;
  content.moe_layers /= stages;
  content.embedding = true;
  content.head = stages == 1;
  return content;
}

StageContent whole(const Model& model) {
  StageContent content = layers_of(model, 0, model.layers);
  content.embedding = content.head = true;
  return content;
}

double kept(const Model& model, LayerKind kind, const char* recompute = "none") {
  ActivationRules rules;
  rules.recompute = parse_recompute(recompute, "");
  rules.choices = model.moe ? model.moe->top_k : 0;
  return kept_bytes(model, kind, {}, rules);
}

// Both kinds of layers, minus what both share.
double freed(const Model& model, LayerKind kind, const char* recompute) {
  return kept(model, kind) - kept(model, kind, recompute);
}

bool rounds_to(double value, double printed, double digit) {
  INFO(value << " for " << printed);
  return std::abs(value - printed) <= digit / 2;
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

TEST_CASE("kept activations are those of the formulas") {
  const Model v3 = Model::load("deepseek-v3");
  // MLA 201,344; MoE 256,000; dense 139,264 bytes per token.
  CHECK(kept(v3, LayerKind::dense) == 201'344 + 139'264);
  CHECK(kept(v3, LayerKind::moe) == 201'344 + 256'000);
  CHECK(freed(v3, LayerKind::moe, "mla_up_proj") == 131'072);
  CHECK(freed(v3, LayerKind::moe, "moe_act") == 32'768);
  CHECK(freed(v3, LayerKind::moe, "layernorm") == 28'672);
  CHECK(freed(v3, LayerKind::dense, "layernorm") == 28'672);
  CHECK(freed(v3, LayerKind::moe, "core_attn") == 4 * 128);
  CHECK(freed(v3, LayerKind::dense, "mlp") == 6 * 18'432);
  CHECK(freed(v3, LayerKind::moe, "shared_experts") == 6 * 2048);
  // 2 k h + 6 k f + 6 f_s + 8 E; what it holds is not freed twice.
  const double moe = 2 * 8 * 7168 + 6 * 8 * 2048 + 6 * 2048 + 8 * 256;
  CHECK(freed(v3, LayerKind::moe, "moe") == moe);
  CHECK(freed(v3, LayerKind::moe, "moe,moe_act,shared_experts") == moe);
  CHECK(kept(v3, LayerKind::moe, "full") == 2 * 7168);
  // GQA: 4 h + 2 d (a + 2 g) + 2 a d + 4 a.
  const Model mixtral = Model::load("mixtral-8x7b");
  CHECK(kept(mixtral, LayerKind::moe) == 4 * 4096 + 2 * 128 * (32 + 16) + 2 * 4096 + 4 * 32 +  //
                                             4 * 4096 + 2 * (2 * 4096 + 6 * 14336) + 8 * 8);
  // Rows of the fullest rank.
  ActivationRules rules;
  rules.choices = 8;
  rules.load = 1.25;
  CHECK(kept_bytes(v3, LayerKind::moe, {}, rules) ==
        kept(v3, LayerKind::moe) + 0.25 * 8 * (2 * 7168 + 6 * 2048));
}

TEST_CASE("the layers of Korthikanti et al.") {
  // Table 2 of arXiv:2205.05198, per token: MHA, GELU, dropout, scores kept.
  struct Row {
    double hidden, heads, score_ratio, freed_percent;
  };
  // GPT-3 (96 heads of 128) and the 530 B model (128 heads of 160), s 2,048.
  for (const Row& row : {Row{12288, 96, 80, 70}, Row{20480, 128, 64, 65}}) {
    Model model;
    model.layers = 1;
    model.hidden = static_cast<std::int64_t>(row.hidden);
    model.heads = model.kv_heads = static_cast<std::int64_t>(row.heads);
    model.head_dim = model.hidden / model.heads;
    model.ffn = 4 * model.hidden;
    model.gated = false;
    ActivationRules rules;
    rules.flash_attention = false;
    rules.dropout = true;
    rules.length = 2048;
    const double scores = 5 * row.heads * 2048;
    CHECK(scores / row.hidden == row.score_ratio);
    CHECK(kept_bytes(model, LayerKind::dense, {}, rules) == 34 * row.hidden + scores);
    ShardSizes shards;
    shards.tensor = 8;
    // With sequence parallelism per token of T' = T / TP.
    CHECK(kept_bytes(model, LayerKind::dense, shards, rules) == 34 * row.hidden + scores);
    rules.sequence_parallel = false;
    CHECK(kept_bytes(model, LayerKind::dense, shards, rules) ==
          10 * row.hidden + 24 * row.hidden / 8 + scores / 8);
    rules.sequence_parallel = true;
    rules.recompute = parse_recompute("core_attn", "");
    CHECK(kept_bytes(model, LayerKind::dense, shards, rules) == 34 * row.hidden);
    CHECK(100 * scores / (34 * row.hidden + scores) == Approx(row.freed_percent).margin(0.5));
    rules.recompute = parse_recompute("full", "");
    CHECK(kept_bytes(model, LayerKind::dense, shards, rules) == 2 * row.hidden);
  }
}

TEST_CASE("offloaded inputs leave the GPU and are on the host") {
  const Model v3 = Model::load("deepseek-v3");
  ActivationRules rules;
  rules.choices = 8;
  const auto offloaded = [&](LayerKind kind, const char* modules, const char* recompute = "none") {
    rules.offload = parse_offload(modules, "here");
    rules.recompute = parse_recompute(recompute, "here");
    const double bytes = offloaded_bytes(v3, kind, {}, rules);
    const double with = kept_bytes(v3, kind, {}, rules);
    rules.offload = {};
    CHECK(kept_bytes(v3, kind, {}, rules) == Approx(with + bytes).epsilon(1e-12));
    return bytes;
  };
  CHECK(offloaded(LayerKind::moe, "none") == 0);
  CHECK(offloaded(LayerKind::moe, "attn_norm,mlp_norm") == 2 * 2 * 7168);
  CHECK(offloaded(LayerKind::moe, "qkv_linear") == 2 * 7168);
  // Queries and keys of 128 + 64, values of 128, of 128 heads; what comes out of attention.
  CHECK(offloaded(LayerKind::dense, "core_attn") == 2 * 128 * (192 + 192 + 128));
  CHECK(offloaded(LayerKind::dense, "attn_proj") == 2 * 128 * 128);
  CHECK(offloaded(LayerKind::moe, "expert_fc1") == 8 * 2 * 7168);
  CHECK(offloaded(LayerKind::moe, "moe_act") == 8 * 4 * 2048);
  CHECK(offloaded(LayerKind::dense, "expert_fc1,moe_act") == 0);
  // What is computed again need not be kept anywhere.
  CHECK(offloaded(LayerKind::moe, "core_attn", "mla_up_proj") == 0);
  CHECK(offloaded(LayerKind::moe, "core_attn", "full") == 0);
  CHECK_THROWS_WITH(parse_offload("moe_act,experts", "--offload"),
                    ContainsSubstring("--offload: unknown value 'experts'"));
}

TEST_CASE("a stage keeps the offloaded inputs of two layers") {
  const Model model = Model::load("mixtral-8x7b");
  StageMemoryQuery query;
  query.model = &model;
  query.experts = 8;
  query.tokens = 1000;
  query.chunks = {{layers_of(model, 0, 4), 3}};
  query.activations.choices = 2;
  const StageMemory before = stage_memory(query);
  query.activations.offload = parse_offload("expert_fc1", "here");
  const StageMemory after = stage_memory(query);
  const std::int64_t layer = 1000 * 2 * 2 * 4096;
  CHECK(after.offloaded.count == 4 * 3 * layer);
  CHECK(before.activations.count - after.activations.count == (4 * 3 - 2) * layer);
  CHECK(before.total().count - after.total().count == (4 * 3 - 2) * layer);
}

TEST_CASE("the two layers with most to copy are on the GPU, not two average ones") {
  const Model model = Model::load("deepseek-v3");
  StageMemoryQuery query;
  query.model = &model;
  query.experts = 256;
  query.tokens = 1000;
  query.chunks = {{layers_of(model, 2, 4), 1}};  // one dense layer, three with experts
  query.activations.choices = 8;
  query.activations.offload = parse_offload("expert_fc1", "here");  // of MoE layers alone
  const StageMemory offloaded = stage_memory(query);
  query.activations.offload = {};
  const StageMemory kept = stage_memory(query);
  CHECK(offloaded.offloaded.count % 3 == 0);
  CHECK(kept.activations.count - offloaded.activations.count == offloaded.offloaded.count / 3);
}

TEST_CASE("ZeRO 2 and 3 hold the gradients of two layers until they are reduced") {
  const Model model = Model::load("deepseek-v3");
  StageMemoryQuery query;
  query.model = &model;
  query.experts = 256;
  query.shards = {.expert = 8, .data = 2, .expert_data = 2};
  query.tokens = 1;
  query.chunks = {{layers_of(model, 10, 8), 1}};
  const StageParameters held = stage_parameters(model, layers_of(model, 10, 8), query.shards, 256);
  const auto gradients = [&](int zero) {
    query.states.zero = zero;
    return static_cast<double>(stage_memory(query).gradients.count);
  };
  const double all = 4 * (held.dense + held.expert);
  CHECK(gradients(1) == Approx(all));
  CHECK(gradients(2) == Approx(all / 2 + all / 4));  // its share, and two of eight layers
  CHECK(gradients(3) == gradients(2));
  query.states.gradient_bytes = 2;
  CHECK(gradients(2) == Approx(all / 2 * 3 / 4));
}

TEST_CASE("low precision shortens what GEMMs alone read") {
  const Model model = Model::load("mixtral-8x7b");
  ActivationRules rules;
  rules.choices = 2;
  const double wide = kept_bytes(model, LayerKind::dense, {}, rules);
  rules.precision = Precision::fp8_delayed;
  // One byte less for the inputs of QKV, of the FFN and of its second matrix; one more for that of
  // the output projection, whose bf16 values the backward pass of attention reads.
  CHECK(kept_bytes(model, LayerKind::dense, {}, rules) == wide - 4096 - 4096 - 14336 + 4096);
  rules.precision = Precision::bf16;
  const double rows = kept_bytes(model, LayerKind::moe, {}, rules);
  rules.precision = Precision::mxfp8;
  const double less = 2 - 1.03125;
  // Of an MoE layer the router reads the norm's output, in bf16.
  CHECK(kept_bytes(model, LayerKind::moe, {}, rules) ==
        Approx(rows - less * (4096 + 2 * 4096 + 2 * 14336) + 1.03125 * (4096 + 4096)));
}

TEST_CASE("the peak on one node is that of the formulas") {
  // MooreThreads/SimuMax, b200_release_v1.2_summary.md: 8 B200, s 4,096, b 1. Measured, and
  // SimuMax's own estimate, in GiB; the rest is computed from the formulas.
  struct Row {
    const char* name;
    int tensor, expert;
    double states, activations, logits, sum, measured, simumax;
  };
  const Row rows[] = {{"deepseek-v3-4layers", 1, 8, 92.78, 6.53, 2.96, 102.27, 104.30, 103.52},
                      {"deepseek-v2-4layers", 1, 8, 37.55, 5.10, 2.34, 44.99, 45.63, 45.40},
                      {"llama3-70b-12layers", 2, 1, 51.84, 6.29, 1.47, 59.59, 60.68, 60.51},
                      {"llama3-70b-12layers", 8, 1, 25.92, 1.57, 0.37, 27.86, 28.29, 28.17}};
  std::printf("%-22s %10s %10s %10s\n", "peak, GiB", "formulas", "measured", "SimuMax");
  for (const Row& row : rows) {
    CAPTURE(row.name, row.tensor);
    const Model model = Model::load(row.name);
    StageMemoryQuery query;
    query.model = &model;
    query.shards = shards_of(8, row.tensor, 1, row.expert);
    query.experts = model.moe ? model.moe->experts : 0;
    query.chunks = {{whole(model), 1}};
    query.tokens = 4096;
    query.activations.choices = model.moe ? model.moe->top_k : 0;
    const StageMemory memory = stage_memory(query);
    CHECK(rounds_to(memory.states().gib(), row.states, 0.01));
    CHECK(rounds_to(memory.activations.gib(), row.activations, 0.01));
    CHECK(rounds_to(memory.logits.gib(), row.logits, 0.01));
    const double sum = (memory.states() + memory.activations + memory.logits).gib();
    CHECK(rounds_to(sum, row.sum, 0.01));
    // Low by 1.4 to 2.0 %: buffers and workspace.
    CHECK(1 - sum / row.measured > 0.0135);
    CHECK(1 - sum / row.measured < 0.0205);
    std::printf("%-19s TP %d %9.2f %10.2f %10.2f\n", row.name, row.tensor, sum, row.measured,
                row.simumax);
  }
}

TEST_CASE("a stage holds its chunks in flight") {
  const Model model = Model::load("llama3-70b");
  StageMemoryQuery query;
  query.model = &model;
  query.shards.tensor = 2;
  query.tokens = 4096;
  StageContent quarter;
  quarter.dense_layers = 20;
  query.chunks = {{quarter, 4}};  // 1F1B, first of 4 stages
  const StageMemory plain = stage_memory(query);
  // Interleaved by 2: 11 chunks of 10 layers for 8, 1 + (PP - 1) / (PP v) times as many.
  quarter.dense_layers = 10;
  query.chunks = {{quarter, 6}, {quarter, 5}};
  const StageMemory interleaved = stage_memory(query);
  CHECK(static_cast<double>(interleaved.activations.count) /
            static_cast<double>(plain.activations.count) ==
        Approx(1 + 3.0 / 8));
  CHECK(interleaved.states() == plain.states());
  CHECK(plain.logits.count == 0);
  CHECK(plain.recomputed.count == 0);
  CHECK(plain.exchange_buffers.count == 0);
}

TEST_CASE("whole layers are recomputed in groups, or the first of a stage") {
  const Model model = Model::load("llama3-70b");
  StageMemoryQuery query;
  query.model = &model;
  query.tokens = 1000;
  StageContent layers;
  layers.dense_layers = 10;
  query.chunks = {{layers, 3}};
  const double layer = kept(model, LayerKind::dense);
  const double input = 2 * 8192;
  const auto activations = [&](const char* recompute) {
    query.activations.recompute = parse_recompute(recompute, "");
    return static_cast<double>(stage_memory(query).activations.count) / 3000;
  };
  CHECK(activations("none") == 10 * layer);
  CHECK(activations("full") == 10 * input);
  CHECK(activations("full:uniform:4") == 3 * input);
  CHECK(stage_memory(query).recomputed.count == std::llround(4000 * (layer - input)));
  CHECK(activations("full:uniform:40") == input);  // no more than the chunk has
  CHECK(stage_memory(query).recomputed.count == std::llround(10'000 * (layer - input)));
  CHECK(activations("full:block:4") == 4 * input + 6 * layer);
  CHECK(stage_memory(query).recomputed.count == std::llround(1000 * (layer - input)));
  CHECK(activations("full:block:40") == 10 * input);
}

// Whatever is recomputed one layer at a time, the layer at work is there again: of one chunk in
// flight, n layers of a kind save all but one of them and cost an input each.
TEST_CASE("blocks take the first layers of a chunk, of the kinds that they have") {
  const Model deepseek = Model::load("deepseek-v2-lite");  // a dense layer, then MoE layers
  StageMemoryQuery query;
  query.model = &deepseek;
  query.experts = 64;
  query.tokens = 1000;
  query.activations.choices = 6;
  using KeptAndAgain = std::pair<double, double>;  // per token
  const auto bytes = [&](const char* recompute) {
    query.activations.recompute = parse_recompute(recompute, "");
    const StageMemory memory = stage_memory(query);
    return KeptAndAgain(static_cast<double>(memory.activations.count) / 1000,
                        static_cast<double>(memory.recomputed.count) / 1000);
  };
  const double input = 2 * 2048;
  const double dense = kept(deepseek, LayerKind::dense);
  const double moe = kept(deepseek, LayerKind::moe);
  query.chunks = {{layers_of(deepseek, 0, 3), 1}};
  CHECK(bytes("none") == KeptAndAgain(dense + 2 * moe, 0));
  CHECK(bytes("full:block:1") == KeptAndAgain(input + 2 * moe, dense - input));
  CHECK(bytes("full:block:2") == KeptAndAgain(2 * input + moe, moe - input));
  // Another chunk begins with an MoE layer.
  query.chunks.push_back({layers_of(deepseek, 3, 1), 1});
  CHECK(bytes("full:block:1").second == moe - input);
  // A prediction depth is recomputed whatever its chunk has.
  query.chunks = {{layers_of(deepseek, 0, 3), 1}};
  query.chunks[0].content.mtp_depths = 1;
  CHECK(bytes("full:block:1").second == moe - input);

  const Model alternate = Model::load("gpt-l16-h2560-moe16-alternate");
  query.model = &alternate;
  query.experts = alternate.moe->experts;
  query.activations.choices = alternate.moe->top_k;
  query.chunks = {{layers_of(alternate, 0, 16), 1}};
  double before = bytes("none").first;
  for (int again = 1; again <= 16; ++again) {
    const double after = bytes(fmt::format("full:block:{}", again).c_str()).first;
    const LayerKind kind = alternate.is_moe_layer(again - 1) ? LayerKind::moe : LayerKind::dense;
    CHECK(before - after == kept(alternate, kind) - 2 * 2560);
    before = after;
  }
}

TEST_CASE("exchange buffers and the losses of prediction depths") {
  const Model model = Model::load("deepseek-v3");
  StageMemoryQuery query;
  query.model = &model;
  query.experts = 256;
  query.shards.expert = 32;
  query.tokens = 4096;
  query.activations.choices = 8;
  StageContent last;
  last.moe_layers = 1;
  last.head = true;
  query.chunks = {{last, 1}};
  const StageMemory one = stage_memory(query);
  CHECK(one.exchange_buffers.count == 4LL * 8 * 4096 * 7168);
  CHECK(one.logits.count == 6LL * 129280 * 4096);
  query.chunks[0].content.mtp_depths = 1;
  query.chunks[0].content.mtp_losses = 1;
  const StageMemory two = stage_memory(query);
  CHECK(two.exchange_buffers == one.exchange_buffers);
  CHECK(two.logits.count == (6LL + 4) * 129280 * 4096);
  CHECK(two.activations.count - one.activations.count == 4096LL * (457'344 + 8 * 7168));
  // Depths on one stage, the loss on another, which computes the logits of both.
  query.chunks[0].content.head = false;
  query.chunks[0].content.mtp_losses = 0;
  CHECK(stage_memory(query).logits.count == 0);
  StageContent loss;
  loss.head = true;
  loss.mtp_losses = 1;
  query.chunks = {{loss, 1}};
  CHECK(stage_memory(query).logits == two.logits);
}

TEST_CASE("context ranks hold keys and values of each other") {
  const Model model = Model::load("qwen3-30b-a3b");  // 4 key-value heads of 128
  StageMemoryQuery query;
  query.model = &model;
  query.experts = 128;
  query.tokens = 8192;
  query.shards.tensor = 2;
  query.shards.context = 8;
  StageContent layer;
  layer.moe_layers = 1;
  query.chunks = {{layer, 3}};
  const auto bytes = [&](ContextMethod method) {
    query.context = method;
    return stage_memory(query).exchange_buffers.count;
  };
  // Keys and values, 2 * 4 * 128 per token, and as many gradients, in bf16, once for all layers.
  const std::int64_t piece = 2LL * 2 * 8192 * (2 * 4 * 128) / 2;
  const std::int64_t rest = bytes(ContextMethod::all_to_all);
  CHECK(bytes(ContextMethod::all_gather) - rest == 8 * piece);
  CHECK(bytes(ContextMethod::ring) - rest == 2 * piece);
  query.shards.tensor = 8;  // a head on each rank
  CHECK(bytes(ContextMethod::all_gather) - bytes(ContextMethod::all_to_all) ==
        8 * 2LL * 2 * 8192 * 2 * 128);
  query.shards.context = 1;
  CHECK(bytes(ContextMethod::all_gather) == bytes(ContextMethod::all_to_all));
  StageContent none;
  none.head = true;
  query.shards.context = 8;
  query.chunks = {{none, 1}};
  CHECK(bytes(ContextMethod::all_gather) == 0);
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

TEST_CASE("a stage that cannot be is refused") {
  const Model model = Model::load("deepseek-v3");
  StageMemoryQuery query;
  query.model = &model;
  query.chunks = {{whole(model), 1}};
  CHECK_THROWS_AS(stage_memory(query), moesim::UsageError);  // no number of experts
  query.experts = 256;
  CHECK_NOTHROW(stage_memory(query));
  query.shards.expert = 3;
  CHECK_THROWS_WITH(stage_memory(query), ContainsSubstring("256 experts"));
  query.shards.expert = 0;
  CHECK_THROWS_AS(stage_memory(query), moesim::UsageError);
  query.shards.expert = 8;
  query.states.zero = 4;
  CHECK_THROWS_AS(stage_memory(query), moesim::UsageError);
  query.states.zero = 1;
  const Model encoder = Model::load("switch-base-8");
  query.model = &encoder;
  query.experts = 8;
  CHECK_THROWS_WITH(stage_memory(query), ContainsSubstring("encoder"));
}

TEST_CASE("experts without a gate keep their activation for the routes' weights") {
  Model model = Model::load("switch-base-8");
  ActivationRules rules;
  rules.choices = 1;
  rules.load = 1;
  rules.length = 512;
  const auto kept = [&](const char* recompute) {
    rules.recompute = parse_recompute(recompute, "");
    return kept_bytes(model, LayerKind::moe, {}, rules);
  };
  // Before and behind the activation, and weighted: recomputed, the first of three is left.
  const double width = 3072;
  CHECK(kept("none") - kept("moe_act") == 2 * 2 * width);
  model.gated = true;
  CHECK(kept("none") - kept("moe_act") == 2 * width);
}

TEST_CASE("clamped experts keep what they clamp and what comes of it") {
  Model model = Model::load("gpt-oss-120b");
  REQUIRE(model.moe->clamped);
  ActivationRules rules;
  rules.choices = 4;
  rules.length = 4096;
  const auto kept = [&](const char* recompute) {
    rules.recompute = parse_recompute(recompute, "");
    return kept_bytes(model, LayerKind::moe, {}, rules);
  };
  const double clamped = kept("none");
  const double recomputed = kept("moe_act");
  rules.fused_experts = true;
  CHECK(clamped - kept("none") == 4 * 4 * 2880);  // both halves of four rows in bf16
  CHECK(kept("moe_act") == recomputed);
  rules.fused_experts = false;
  model.moe->clamped = false;
  CHECK(clamped - kept("none") == 4 * 4 * 2880);
  CHECK(kept("moe_act") == recomputed);
}
