#include "sim/model/linear_attention.hpp"

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/model/memory/kept_activations.hpp"
#include "sim/model/memory/stage_weights.hpp"
#include "sim/model/memory/training_memory.hpp"
#include "sim/model/training_work.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/stage_examples.hpp"

using namespace moesim::model;
using moesim::Document;

namespace {

Model qwen_next() { return Model::load("qwen3-next-80b-a3b"); }

// The message for its document with one piece of text exchanged for another.
std::string refusal(const std::string& from, const std::string& to) {
  std::string text = moesim::read_file(moesim::find_document("models", "qwen3-next-80b-a3b"));
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  try {
    Model::read(Document::parse(text.replace(at, from.size(), to), "bad.json"));
  } catch (const moesim::UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the last of each group of layers has softmax attention") {
  Model model = qwen_next();
  CHECK(model.linear_layers() == 36);
  CHECK(model.linear_share() == 0.75);
  CHECK(model.has_linear_attention(0));
  CHECK(model.has_linear_attention(2));
  CHECK_FALSE(model.has_linear_attention(3));
  CHECK_FALSE(model.has_linear_attention(47));
  model.layers = 6;
  CHECK(model.linear_layers() == 5);
  model.linear->full_every = 0;
  CHECK(model.linear_layers() == 6);
  CHECK(model.has_linear_attention(3));
  const Model plain = Model::load("qwen3-30b-a3b");
  CHECK(plain.linear_layers() == 0);
  CHECK(plain.linear_parameters() == 0);
  CHECK_FALSE(plain.has_linear_attention(0));
}

TEST_CASE("the checkpoint of Qwen3-Next has the parameters counted, but for vectors") {
  const Model model = qwen_next();
  // q, k of 16 heads, v, z of 32, each of 128; two gates per value head.
  CHECK(model.linear->projected() == 2 * 2048 + 2 * 4096 + 64);
  CHECK(model.linear_parameters() == 2048 * 12352 + 4096 * 2048 + 4 * 8192);
  // Queries and their gate, keys and values of two heads; the output.
  CHECK(model.attention_parameters() == 2048 * 256 * (2 * 16 + 4) + 4096 * 2048);
  // Vectors of a layer that are not counted: the gate of the shared expert; decay and norm; norms
  // of queries and keys.
  const std::int64_t vectors = 48 * 2048 + 36 * (2 * 32 + 128) + 12 * 2 * 256;
  CHECK(model.total_parameters(512) + vectors == 79'674'391'296);  // of its weight files
}

TEST_CASE("model FLOPs of linear attention are Megatron's") {
  const Model model = qwen_next();
  const LayerWork linear = layer_work(model, 0, 4096);
  CHECK(linear.projections == 2.0 * 2048 * (12352 + 4096));
  CHECK(linear.core_attention == 0);
  CHECK(linear.linear_attention == 2.0 * (4 * 8192 + 32 * 128 * 128 * 4));
  CHECK(linear.total(0) - linear.router - linear.shared_experts == 71'630'848);
  CHECK(layer_work(model, 0, 262'144).linear_attention == linear.linear_attention);
  const LayerWork full = layer_work(model, 3, 4096);
  CHECK(full.linear_attention == 0);
  CHECK(full.projections == 2.0 * (2048 * 9216 + 4096 * 2048));
  CHECK(full.core_attention == 2.0 * 4096 * 4096);
  // 3 times 36 x 71,630,848 + 12 x 88,080,384 + 48 x 69,206,016 of experts + the head.
  const ModelFlops flops = model_flops(model, 4096, 10, 0);
  CHECK(flops.total == 22'739'681'280);
  CHECK(flops.core_attention == 3 * 12 * full.core_attention);
  // A decoder's step in the same terms: the router too.
  CHECK(model.forward_flops(4096, 512, 10) == flops.total / 3 + 48 * 2.0 * 2048 * 512);
}

TEST_CASE("work of the chunked delta rule, one head by hand") {
  LinearAttention linear;
  linear.key_heads = linear.value_heads = 1;
  linear.key_dim = 128;
  linear.value_dim = 256;
  linear.convolution = 4;
  // The products of 64 tokens: 64 x 128 with 128 x 64, 64 x 64 with 64 x 128 or 64 x 256, and those
  // with the state of 128 x 256.
  const double narrow = 2.0 * 64 * 64 * 128;
  const double wide = 2.0 * 64 * 64 * 256;
  const double state = 2.0 * 64 * 128 * 256;
  const double inverse = 2.0 * 64 * 64 * 64 / 3;
  const KernelWork forward = delta_rule_work(linear, false);
  CHECK(forward.flops * 64 == Approx(3 * narrow + 2 * wide + 3 * state + inverse));
  // K, K, K, K, W twice, Q; V, U twice, V' twice, O; triangles in fp32 twice, in bf16 twice; states
  // written and read.
  CHECK(forward.bytes * 64 ==
        Approx(64 * 2 * (7 * 128 + 6 * 256) + 64 * 64 * 12 + 2 * 2 * 128 * 256));
  const KernelWork backward = delta_rule_work(linear, true);
  CHECK(backward.flops * 64 == Approx(10 * narrow + 5 * wide + 8 * state + 4 * 64 * 64 * 64));
  CHECK(backward.bytes > 2 * forward.bytes);
  linear.value_heads = 4;
  CHECK(delta_rule_work(linear, false).flops == 4 * forward.flops);
  // Convolution in and out; its output and the gate read, q and k for four heads, v and gate
  // written; the norm reads output and gate.
  const double channels = 2 * 128 + 1024;
  CHECK(bytes_beside_delta_rule(linear, false) ==
        2 * (2 * channels + channels + 1024 + 2 * 512 + 2 * 1024 + 3 * 1024));
}

TEST_CASE("copies around the exchanges of context ranks") {
  // Three copies of queries, keys, values, gate, g and b, read and written, and two of the output;
  // backward the first adds into zeros: written, read, read and written.
  const Model model = qwen_next();
  CHECK(bytes_between_context_ranks(*model.linear, false) == 2 * (3 * 2 * 12352 + 2 * 2 * 4096));
  CHECK(bytes_between_context_ranks(*model.linear, true) ==
        2 * ((2 * 2 + 4) * 12352 + 2 * 2 * 4096));
}

TEST_CASE("buffers of keys and values are of stages with softmax attention") {
  const Model model = qwen_next();
  StageMemoryQuery query;
  query.model = &model;
  query.experts = 512;
  query.tokens = 1024;
  query.shards.context = 4;
  query.activations.choices = 10;
  const auto buffers = [&](int first, int count) {
    query.chunks = {{layers_of(model, first, count), 1}};
    return stage_memory(query).exchange_buffers.count;
  };
  // Two pieces of keys and values, and of their gradients: two heads of 256, bf16.
  CHECK(buffers(2, 2) - buffers(0, 2) == 2.0 * 2 * 2 * 1024 * 2 * (256 + 256));
  CHECK(buffers(3, 1) == buffers(2, 2));
  query.chunks = {{layers_of(model, 0, 2), 1}};
  query.chunks[0].content.mtp_depths = 1;
  CHECK(stage_memory(query).exchange_buffers.count >= buffers(3, 1));
}

TEST_CASE("weights of stages with linear attention") {
  const Model model = qwen_next();
  const StageContent stage = layers_of(model, 2, 3);  // linear, softmax, linear
  CHECK(stage.moe_layers == 3);
  CHECK(stage.linear_layers == 2);
  CHECK(linear_among_first(model, stage, 1) == 1);
  CHECK(linear_among_first(model, stage, 2) == 1);
  CHECK(linear_among_first(model, stage, 9) == 2);
  ShardSizes shards;
  shards.tensor = 2;
  // Heads and convolution are divided; two norms and the router of each layer are not.
  const double router = 3.0 * 2048 * (512 + 2);
  const StageParameters held = stage_parameters(model, stage, shards, 512);
  CHECK(held.dense == 2.0 * model.linear_parameters() / 2 + model.attention_parameters() / 2.0 +
                          3 * 3.0 * 2048 * 512 / 2 + router);
  CHECK(held.gemm == held.dense - router - 4.0 * 8192);  // two convolutions, halved
  const StageParameters all = stage_parameters(model, whole(model), {}, 512);
  CHECK(all.dense + all.expert == static_cast<double>(model.total_parameters(512)));
  StageContent mean = layers_of(model, 0, 4);
  mean.first_layer = -1;
  CHECK(linear_among_first(model, mean, 2) == 1.5);
}

TEST_CASE("a prediction depth of Qwen3-Next has softmax attention and experts") {
  const Model model = qwen_next();
  REQUIRE(model.mtp_depths == 1);
  CHECK(attention_kind(model, model.layers) == AttentionKind::softmax);
  StageContent depth;
  depth.mtp_depths = 1;
  depth.embedding_beside = true;
  const StageParameters held = stage_parameters(model, depth, {}, 512);
  CHECK(held.expert == 512.0 * 3 * 2048 * 512);
  // Attention, router, shared expert, two vectors to one, five norms.
  CHECK(held.dense == 27'262'976 + 1'048'576 + 3'145'728 + 8'388'608 + 5 * 2048);
  // With the gate of the shared expert and norms of queries and keys its weights in the files.
  CHECK(held.dense + held.expert + 2048 + 2 * 256 == 1'650'471'424);
  // Its layer, the projection, the head once more; three times for a step.
  const double layer = 88'080'384 + 69'206'016;
  CHECK(model_flops(model, 4096, 10, 1).total - model_flops(model, 4096, 10, 0).total ==
        3 * (layer + 4.0 * 2048 * 2048 + 2.0 * 2048 * 151'936));
}

TEST_CASE("what layers with linear attention keep, by hand") {
  const Model model = qwen_next();
  ActivationRules rules;
  rules.choices = 10;
  const auto kept = [&](AttentionKind kind) {
    return kept_bytes(model, LayerKind::moe, {}, rules, kind);
  };
  const double moe = 4 * 2048 + 10 * (2 * 2048 + 6 * 512) + 6 * 512 + 8 * 512;
  // Softmax: norm; queries and keys before their norms; queries, keys, values; gate and output
  // before it, output behind; log-sum-exps.
  CHECK(kept(AttentionKind::softmax) == moe + 4 * 2048 + 2 * 256 * (16 + 2) + 2 * 256 * (16 + 4) +
                                            2 * 2 * 4096 + 2 * 4096 + 4 * 16);
  // 4 h + 2 (2 x 2,048 + 4,096) + 4 x 2,048 + 4 x 4,096 + 2 x 4,096 + 2 C 32 + 8 x 4,096 + 10 x 32.
  const double linear =
      4 * 2048 + 2 * 8192 + 4 * 2048 + 4 * 4096 + 2 * 4096 + 2 * 64 * 32 + 8 * 4096 + 10 * 32;
  CHECK(kept(AttentionKind::linear) == moe + linear);
  CHECK(linear_more_bytes(model, {}, rules) ==
        kept(AttentionKind::linear) - kept(AttentionKind::softmax));
  CHECK(linear_more_bytes(Model::load("mixtral-8x7b"), {}, rules) == 0);
  StageMemoryQuery query;
  query.model = &model;
  query.experts = 512;
  query.tokens = 4096;
  query.activations = rules;
  query.chunks = {{layers_of(model, 2, 3), 1}};
  const double three = 2 * kept(AttentionKind::linear) + kept(AttentionKind::softmax);
  CHECK(stage_memory(query).activations.count == 4096 * three);
  // The layer at work, if layers are recomputed whole, is one with linear attention.
  query.activations.recompute = parse_recompute("full", "");
  CHECK(stage_memory(query).activations.count == 3 * 4096 * 2 * 2048);
  CHECK(stage_memory(query).recomputed.count == 4096 * (kept(AttentionKind::linear) - 2 * 2048));
  // The first layer recomputed, which has it; the other two are kept.
  query.activations.recompute = parse_recompute("full:block:1", "");
  CHECK(stage_memory(query).activations.count ==
        4096 * (three - kept(AttentionKind::linear) + 2 * 2048));
}

TEST_CASE("core_attn does nothing again in layers with linear attention") {
  const Model model = qwen_next();
  const Recompute core = parse_recompute("core_attn", "");
  const RecomputeWork linear = recompute_work(model, 0, core, 4096, 10);
  CHECK(linear.core_attention_flops == 0);
  CHECK_FALSE(linear.context_exchange);
  const RecomputeWork softmax = recompute_work(model, 3, core, 4096, 10);
  CHECK(softmax.core_attention_flops == 2.0 * 4096 * 4096);
  CHECK(softmax.context_exchange);
  // With whole layers both do.
  const Recompute full = parse_recompute("full", "");
  CHECK(recompute_work(model, 0, full, 4096, 10).context_exchange);
  CHECK(recompute_work(model, 0, full, 4096, 10).core_attention_flops ==
        layer_work(model, 0, 4096).linear_attention);
}

TEST_CASE("linear attention that is not known is refused") {
  CHECK_THAT(refusal("\"key_heads\": 16", "\"key_heads\": 12"),
             ContainsSubstring("12 key heads do not divide 32 value heads"));
  CHECK_THAT(refusal("\"full_every\": 4", "\"full_every\": 1"),
             ContainsSubstring("no layer has linear attention"));
  CHECK_THAT(refusal("\"linear\": {", "\"window\": {\"tokens\": 8}, \"linear\": {"),
             ContainsSubstring("linear attention beside layers with a window is not known"));
  CHECK_THAT(refusal("\"layers\": 48", "\"layers\": 48, \"encoder_layers\": 2"),
             ContainsSubstring("linear attention beside an encoder is not known"));
  const std::string latent =
      "\"latent\": {\"query_rank\": 0, \"kv_rank\": 8, \"rope_dim\": 8, \"value_dim\": 8}, ";
  CHECK_THAT(refusal("\"linear\": {", latent + "\"linear\": {"),
             ContainsSubstring("a gate on the output of latent attention is not known"));
  CHECK_THAT(refusal("\"output_gate\": true,", latent),
             ContainsSubstring("linear attention beside latent attention is not known"));
  CHECK_THAT(refusal("\"convolution\": 4,", ""), ContainsSubstring("convolution"));
  const std::string sizes =
      "\"key_heads\": 16,\n    \"value_heads\": 32,\n    \"key_dim\": 128,\n    \"value_dim\": 128";
  CHECK_THAT(refusal(sizes,
                     "\"key_heads\": 65536, \"value_heads\": 65536, \"key_dim\": 65536, "
                     "\"value_dim\": 65536"),
             ContainsSubstring("parameters: at most"));
}
