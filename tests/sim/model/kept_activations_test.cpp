#include "sim/model/memory/kept_activations.hpp"

#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

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

}  // namespace

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

// What they read and attention does not: 2 d (a + g) bytes, g being at least a head per tensor
// rank.
TEST_CASE("norms of queries and keys keep their inputs") {
  struct Row {
    const char* name;
    double bytes;
  };
  for (const Row& row :
       {Row{"qwen3-30b-a3b", 2 * 128 * (32 + 4)}, Row{"qwen3-235b-a22b", 2 * 128 * (64 + 4)},
        Row{"glm-4.5", 2 * 128 * (96 + 8)}, Row{"olmoe-1b-7b", 2 * 128 * 32}}) {
    CAPTURE(row.name);
    Model model = Model::load(row.name);
    REQUIRE(model.query_key_norm);
    ActivationRules rules;
    rules.choices = model.moe->top_k;
    const auto more = [&](const ShardSizes& shards, const char* recompute) {
      rules.recompute = parse_recompute(recompute, "");
      model.query_key_norm = true;
      const double with = kept_bytes(model, LayerKind::moe, shards, rules);
      model.query_key_norm = false;
      return with - kept_bytes(model, LayerKind::moe, shards, rules);
    };
    CHECK(more({}, "none") == row.bytes);
    CHECK(more({}, "layernorm,moe,core_attn") == row.bytes);  // no module has them
    CHECK(more({}, "full") == 0);
    ShardSizes shards;
    shards.tensor = static_cast<int>(2 * model.kv_heads);
    CHECK(more(shards, "none") == row.bytes + 2 * 128 * static_cast<double>(model.kv_heads));
  }
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
  // The router alone reads the norm's output of an MoE layer, in bf16: rows are quantised behind
  // the dispatch.
  CHECK(kept_bytes(model, LayerKind::moe, {}, rules) ==
        Approx(rows - less * (4096 + 2 * 4096 + 2 * 14336) + 1.03125 * 4096));
}

TEST_CASE("latent attention and shared experts keep one copy of what is read twice") {
  const Model v3 = Model::load("deepseek-v3");
  ActivationRules rules;
  rules.choices = 8;
  const auto kept = [&](Precision precision, const char* recompute) {
    rules.precision = precision;
    rules.recompute = parse_recompute(recompute, "");
    return kept_bytes(v3, LayerKind::moe, {}, rules);
  };
  // bf16: norms' inputs and the second one's output; bottlenecks and rotary keys; queries, keys,
  // values; output; log-sum-exps; halves of 8 experts and the shared one; routes. mxfp8: the first
  // norm's output, bottlenecks behind their norms, rows, activations.
  const double wide = 2.0 * (3 * 7168 + 1536 + 512 + 64 + 128 * (192 + 192 + 128) + 128 * 128) +
                      4 * 128 + 9 * 2 * 2 * 2048 + 8 * 256;
  const double narrow = 7168 + 1536 + 512 + 8 * 7168 + 9 * 2048;
  CHECK(kept(Precision::mxfp8, "none") == Approx(wide + 1.03125 * narrow));
  CHECK(kept(Precision::mxfp8, "none") == Approx(375'008));
  CHECK(kept(Precision::mxfp8, "mla_up_proj") == Approx(375'008 - 131'072));
  // Delayed scaling keeps what the projection and the shared experts read in FP8 too.
  const double copies = 128 * 128 + 7168;
  CHECK(kept(Precision::fp8_delayed, "none") == Approx(wide + narrow + copies));
  CHECK(kept(Precision::fp8_delayed, "none") - kept(Precision::fp8_delayed, "shared_experts") ==
        Approx(7168 + (2 * 2 + 1) * 2048));
}

TEST_CASE("FP8 attention keeps queries, keys and values in FP8") {
  const Model v3 = Model::load("deepseek-v3");
  ActivationRules rules;
  rules.choices = 8;
  rules.precision = Precision::mxfp8;
  const auto kept = [&](bool fp8, const char* recompute) {
    rules.fp8_attention = fp8;
    rules.recompute = parse_recompute(recompute, "");
    return kept_bytes(v3, LayerKind::dense, {}, rules);
  };
  const double elements = 128 * (192 + 192 + 128);
  CHECK(kept(false, "none") - kept(true, "none") == elements);
  // Its copies stay where the bf16 tensors are dropped; recomputed, it keeps its bf16 inputs.
  CHECK(kept(true, "mla_up_proj") == kept(true, "none"));
  CHECK(kept(true, "core_attn") == kept(false, "core_attn"));
  CHECK(recomputed_bytes(v3, LayerKind::dense, {}, rules) == 0);
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
