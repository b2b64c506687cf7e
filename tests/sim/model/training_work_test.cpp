#include "sim/model/training_work.hpp"

#include <cmath>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

double flops_per_token(const Model& model, double length, int mtp_depths = 0) {
  return model_flops(model, length, model.moe ? model.moe->top_k : 0, mtp_depths).total;
}

}  // namespace

TEST_CASE("model FLOPs per token are those of Megatron's definition") {
  // Computed with megatron/training/training.py at 4,096 tokens, in GFLOP with the digits given.
  struct Row {
    const char* name;
    int mtp_depths;
    double total;
    double without_core;
    double digit;
  };
  const Row rows[] = {
      {"deepseek-v3", 1, 259.99, 228.79, 0.01},     {"deepseek-v3", 0, 249.81, 219.11, 0.01},
      {"kimi-k2", 0, 204.48, 189.13, 0.01},         {"qwen3-30b-a3b", 0, 23.006, 18.174, 0.001},
      {"qwen3-235b-a22b", 0, 148.03, 129.11, 0.01}, {"mixtral-8x22b", 0, 242.20, 233.74, 0.01},
      {"gpt-oss-120b", 0, 32.630, 30.707, 0.001}};
  for (const Row& row : rows) {
    CAPTURE(row.name, row.mtp_depths);
    const Model model = Model::load(row.name);
    const ModelFlops flops = model_flops(model, 4096, model.moe->top_k, row.mtp_depths);
    CHECK(std::abs(flops.total * 1e-9 - row.total) <= row.digit / 2);
    CHECK(std::abs((flops.total - flops.core_attention) * 1e-9 - row.without_core) <=
          row.digit / 2);
  }
}

TEST_CASE("older figures of GPT-OSS count two matrices per expert and no window") {
  Model model = Model::load("gpt-oss-120b");
  model.gated = false;
  model.window.reset();
  CHECK(flops_per_token(model, 4096) * 1e-9 == Approx(27.164).margin(0.0005));
  CHECK(flops_per_token(model, 8192) * 1e-9 == Approx(30.788).margin(0.0005));
}

TEST_CASE("published throughput and TFLOP/s agree by the definition") {
  // NVIDIA-NeMo/Megatron-Bridge, performance pages 25.11 to 26.06.01: tokens/s and TFLOP/s per GPU,
  // and the TFLOP/s that the definition makes of the throughput, rounded as there.
  struct Row {
    const char* name;
    int mtp_depths;
    double length;
    double tokens_per_s;
    double printed;
    double computed;
    double percent;
  };
  const Row rows[] = {{"deepseek-v3", 1, 4096, 6304, 1640, 1639.0, -0.06},
                      {"deepseek-v3", 1, 4096, 3541, 920, 920.6, 0.07},
                      {"deepseek-v3", 0, 4096, 3848, 961, 961.3, 0.03},
                      {"qwen3-30b-a3b", 0, 4096, 8826, 203, 203.1, 0.03},
                      {"kimi-k2", 0, 4096, 5372, 1099, 1098.4, -0.05},
                      {"gpt-oss-120b", 0, 4096, 33166, 1081, 1082.2, 0.11},
                      {"gpt-oss-120b", 0, 8192, 18347, 565, 564.9, -0.02}};
  for (const Row& row : rows) {
    CAPTURE(row.name, row.tokens_per_s);
    Model model = Model::load(row.name);
    if (row.length == 8192) {  // a release before 26.06, see above
      model.gated = false;
      model.window.reset();
    }
    const double tflops =
        row.tokens_per_s * flops_per_token(model, row.length, row.mtp_depths) / 1e12;
    CHECK(std::abs(tflops - row.computed) <= 0.05);
    CHECK(std::abs(100 * (tflops / row.printed - 1) - row.percent) <= 0.0051);
  }
  // awslabs/awsome-distributed-ai prints the tokens/s of a job: 122,000 on 64 GPUs.
  const Model qwen = Model::load("qwen3-30b-a3b");
  CHECK(122'000.0 / 64 * flops_per_token(qwen, 4096) * 1e-12 == Approx(43.9).margin(0.05));
}

TEST_CASE("the parts of a layer add up to the model's forward pass") {
  for (const char* name : {"deepseek-v3", "mixtral-8x7b", "switch-base-8", "llama2-7b-moe8"}) {
    CAPTURE(name);
    const Model model = Model::load(name);
    const double rows = model.moe->top_k;
    double sum = head_work(model);
    for (int layer = 0; layer < model.layers; ++layer) {
      sum += layer_work(model, layer, 2048).total(rows);
    }
    CHECK(sum == Approx(model.forward_flops(2048, model.moe->experts, rows)).epsilon(1e-12));
  }
}

TEST_CASE("the parts of a layer by hand") {
  // DeepSeek-V3's core attention at 4,096 tokens: 167.8 MFLOP per token and layer.
  const Model deepseek = Model::load("deepseek-v3");
  const LayerWork latent = layer_work(deepseek, 3, 4096);
  CHECK(latent.core_attention * 1e-6 == Approx(167.8).margin(0.05));
  // 2 r_q (h + a (d + e)) + 2 r (h + a (d + u)) + 2 h e + 2 a u h.
  CHECK(latent.projections == 2.0 * 1536 * (7168 + 128 * 192) + 2.0 * 512 * (7168 + 128 * 256) +
                                  2.0 * 7168 * 64 + 2.0 * 128 * 128 * 7168);
  CHECK(latent.expert_row == 6.0 * 7168 * 2048);
  CHECK(latent.shared_experts == 6.0 * 7168 * 2048);
  CHECK(latent.router == 2.0 * 7168 * 256);
  CHECK(latent.dense_ffn == 0);
  CHECK(layer_work(deepseek, 2, 4096).dense_ffn == 6.0 * 7168 * 18432);
  CHECK(mtp_projection_work(deepseek) == 4.0 * 7168 * 7168);
  CHECK(head_work(deepseek) == 2.0 * 7168 * 129280);
  // Mixtral: 2 h d (a + 2 g) + 2 h d a, and 2 s a d.
  const LayerWork grouped = layer_work(Model::load("mixtral-8x7b"), 0, 4096);
  CHECK(grouped.projections == 2.0 * 4096 * 128 * (32 + 16) + 2.0 * 4096 * 128 * 32);
  CHECK(grouped.core_attention == 2.0 * 4096 * 32 * 128);
  // Without a mask it is twice that, and a decoder adds all keys of its encoder.
  const Model encoder = Model::load("switch-base-8");
  CHECK(layer_work(encoder, 0, 512).core_attention == 4.0 * 512 * 12 * 64);
  CHECK(layer_work(encoder, 12, 512).core_attention == (2.0 + 4.0) * 512 * 12 * 64);
}

TEST_CASE("a window counts the keys that its tokens see") {
  Model model = Model::load("gpt-oss-120b");
  CHECK(model.has_window(0));
  CHECK_FALSE(model.has_window(1));
  // 4 a d (w - w (w - 1) / (2 s)); token by token, min(i + 1, w) keys.
  double keys = 0;
  for (int token = 0; token < 4096; ++token) keys += std::min(token + 1, 128);
  CHECK(keys_seen(model, 0, 4096) == Approx(keys / 4096).epsilon(1e-12));
  CHECK(layer_work(model, 0, 4096).core_attention ==
        Approx(4.0 * 64 * 64 * keys / 4096).epsilon(1e-12));
  CHECK(keys_seen(model, 1, 4096) == 2048);
  CHECK(keys_seen(model, 0, 100) == 50);
  model.window->full_every = 0;
  CHECK(model.has_window(1));
  // Blocks of 128 see half of 128 each; 300 tokens are two blocks and 44.
  model.window->chunked = true;
  CHECK(keys_seen(model, 0, 4096) == 64);
  CHECK(keys_seen(model, 0, 300) == Approx((2 * 128.0 * 128 + 44.0 * 44) / 600));
}

TEST_CASE("packed documents change core attention alone") {
  // Documents of 1,024 and 3,072 tokens: mean length (1,024^2 + 3,072^2) / 4,096 = 2,560.
  const Model model = Model::load("mixtral-8x7b");
  const ModelFlops packed = model_flops(model, 2560, 2, 0);
  const ModelFlops whole = model_flops(model, 4096, 2, 0);
  CHECK(packed.total - packed.core_attention == Approx(whole.total - whole.core_attention));
  CHECK(packed.core_attention / whole.core_attention == Approx(2560.0 / 4096));
}

TEST_CASE("model FLOPs without experts are those of the dense counterpart") {
  const Model model = Model::load("llama2-7b-moe8");
  CHECK(model_flops(model, 2048, 0, 0).total ==
        Approx(flops_per_token(Model::load("llama2-7b"), 2048)));
  CHECK_THROWS_AS(model_flops(Model::load("gpt-oss-120b"), 2048, 0, 0), moesim::UsageError);
  CHECK_THROWS_AS(model_flops(model, 0, 1, 0), moesim::UsageError);
}
