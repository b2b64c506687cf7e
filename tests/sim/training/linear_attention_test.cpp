#include "sim/model/linear_attention.hpp"
#include "sim/base/error.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/training/prices/host_launches.hpp"
#include "sim/training/prices/layer_prices.hpp"
#include "sim/training/prices/linear_attention_prices.hpp"
#include "sim/training/step/job_rules.hpp"
#include "sim/training/step/step_bound.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

// On 8 H100, with softmax attention in the last of each `full_every` layers.
TrainingJob next_on_h100(std::int64_t length, int full_every) {
  TrainingJob job = qwen_on_h100(8, 1, 8, 8);
  model::Model model = model::Model::load("qwen3-next-80b-a3b");
  model.linear->full_every = full_every;
  if (full_every == 1) model.linear.reset();
  job.model = std::make_shared<const model::Model>(model);
  job.layout.sequence_length = length;
  return job;
}

// The attention of one layer, forward and backward, on average over the model's layers.
double attention_us(const TrainingJob& job) {
  const LayerPrices prices(job);
  const Passes& layer = prices.layer(true);
  const std::size_t at = training::at(TrainingPart::attention);
  return layer.forward[at] + layer.input_gradient[at] + layer.weight_gradient[at];
}

double linear_us(const TrainingJob& job, bool backward) {
  const Passes passes = linear_attention_passes(job, KernelPrices(job));
  return sum(backward ? passes.input_gradient : passes.forward);
}

}  // namespace

TEST_CASE("linear attention grows with the sequence, softmax attention with its square") {
  const auto growth = [](int full_every) {
    return attention_us(next_on_h100(65'536, full_every)) /
           attention_us(next_on_h100(16'384, full_every));
  };
  CHECK(growth(0) == Approx(4).epsilon(0.05));
  CHECK(growth(1) > 8);
  double before = 0;
  for (const std::int64_t length : {2048, 4096, 8192, 16'384, 32'768}) {
    const double linear = attention_us(next_on_h100(length, 0));
    CHECK(linear > before);
    before = linear;
  }
  // Far beyond 4,096 tokens it is the cheaper one.
  CHECK(before < attention_us(next_on_h100(32'768, 1)));
  CHECK(attention_us(next_on_h100(65'536, 0)) < 0.4 * attention_us(next_on_h100(65'536, 1)));
}

TEST_CASE("a layer is the mean of a model's layers with either attention") {
  const double mixed = attention_us(next_on_h100(8192, 4));
  const double linear = attention_us(next_on_h100(8192, 0));
  const double softmax = attention_us(next_on_h100(8192, 1));
  CHECK(mixed == Approx(0.75 * linear + 0.25 * softmax));
}

TEST_CASE("kernels of linear attention take the assumed share of what the GPU can do") {
  const TrainingJob job = next_on_h100(4096, 4);
  const KernelPrices kernels(job);
  const model::LinearAttention& linear = *job.model->linear;
  for (const bool backward : {false, true}) {
    const model::KernelWork rule = model::delta_rule_work(linear, backward);
    const double beside = model::bytes_beside_delta_rule(linear, backward);
    const double products_us =
        4096 * rule.flops / (0.25 * job.profile->device().peak_bf16_flops) * 1e6;
    CHECK(linear_us(job, backward) ==
          Approx(products_us +
                 kernels.memory_us(4096 * rule.bytes, profile::MemoryKernel::streaming) +
                 kernels.memory_us(4096 * beside, profile::MemoryKernel::streaming)));
  }
  // Tensor ranks divide the heads, until the chunks of a sequence wait for each other: 64 of them,
  // 2 us each, backward twice.
  TrainingJob divided = job;
  divided.layout.sizes.tensor = 2;
  CHECK(linear_us(divided, false) == Approx(linear_us(job, false) / 2).epsilon(0.05));
  divided.layout.sizes.tensor = 16;
  const double beside_us = kernels.memory_us(256 * model::bytes_beside_delta_rule(linear, true),
                                             profile::MemoryKernel::streaming);
  CHECK(linear_us(divided, true) == Approx(2 * 2 * 64 + beside_us));
}

TEST_CASE("context ranks divide the heads of linear attention and exchange them") {
  TrainingJob job = next_on_h100(32'768, 4);
  job.layout.sizes.gpus = 8;
  TrainingJob pieces = job;
  pieces.layout.sizes.context = 4;
  const model::LinearAttention& linear = *job.model->linear;
  const KernelPrices kernels(pieces);
  for (const bool backward : {false, true}) {
    // A quarter of the heads over the whole sequence, no less than its chunks take one by one; all
    // bytes of a quarter of the tokens, and the copies.
    const model::KernelWork rule = model::delta_rule_work(linear, backward);
    const double products_us =
        8192 * rule.flops / (0.25 * job.profile->device().peak_bf16_flops) * 1e6;
    const double rule_us =
        products_us + kernels.memory_us(8192 * rule.bytes, profile::MemoryKernel::streaming);
    const double beside = model::bytes_beside_delta_rule(linear, backward) +
                          model::bytes_between_context_ranks(linear, backward);
    CHECK(linear_us(pieces, backward) ==
          Approx(std::max(rule_us, (backward ? 4.0 : 2.0) * 512) +
                 kernels.memory_us(8192 * beside, profile::MemoryKernel::streaming)));
  }
  // The exchanges of a layer: in and out, forward and backward, none of them hidden.
  const LayerPrices prices(pieces);
  const auto context_us = [&](model::AttentionKind attention, bool backward) {
    const Passes& layer = prices.layer(true, attention);
    return (backward ? layer.input_gradient : layer.forward)[training::at(TrainingPart::context)];
  };
  const auto exchange_us = [&](double width) {
    return prices.exchanges().exchange_us(profile::Collective::all_to_all,
                                          parallel::GroupKind::context, 2 * 8192 * width);
  };
  for (const bool backward : {false, true}) {
    CHECK(context_us(model::AttentionKind::linear, backward) ==
          Approx(exchange_us(12352) + exchange_us(4096)));
  }
  // A ring of few keys and values is hidden by the attention of 32,768 tokens.
  CHECK(context_us(model::AttentionKind::softmax, false) == 0);
  const TrainingStep step = training_step(pieces);
  CHECK(step_bound_us(pieces, prices) <= step.step_us);
  CHECK(memory_bound(pieces) <= step.peak_memory());
}

TEST_CASE("a gate on the output of attention is priced and its projection too") {
  const TrainingJob gated = next_on_h100(4096, 1);
  TrainingJob plain = gated;
  model::Model model = *gated.model;
  model.output_gate = false;
  plain.model = std::make_shared<const model::Model>(model);
  const KernelPrices kernels(gated);
  const auto product = [&](std::int64_t n) { return kernels.product_us({4096, n, 2048}); };
  const double gate_us = kernels.memory_us(6.0 * 4096 * 4096, profile::MemoryKernel::streaming);
  const std::size_t at = training::at(TrainingPart::attention);
  CHECK(LayerPrices(gated).layer(true).forward[at] - LayerPrices(plain).layer(true).forward[at] ==
        Approx(product(9216) - product(5120) + gate_us));
}

TEST_CASE("the host launches more kernels for linear attention") {
  TrainingJob job = next_on_h100(4096, 4);
  const auto launches = [&](model::AttentionKind attention) {
    return host_launches(job, true, attention).forward;
  };
  CHECK(launches(model::AttentionKind::linear) == launches(model::AttentionKind::softmax) + 15);
  job.host.launch_us = 15;
  const LayerPrices prices(job);
  CHECK(prices.host_us(true, model::AttentionKind::linear) ==
        Approx(prices.host_us(true, model::AttentionKind::softmax) + 3 * 15 * 15));
  job.graphs = Graphs::parts;
  CHECK(launches(model::AttentionKind::linear) == launches(model::AttentionKind::softmax));
}

TEST_CASE("each layer of a pipeline has the price of its own attention") {
  // Chunks of one layer: of 4 ranks the last has every layer with softmax attention.
  TrainingJob job = next_on_h100(65'536, 4);
  job.layout.sizes = {};
  job.layout.sizes.gpus = 4;
  job.layout.sizes.pipeline = 4;
  job.layout.sizes.virtual_pipeline = 12;
  job.layout.global_batch = 8;
  const LayerPrices prices(job);
  const auto all_us = [&](model::AttentionKind attention) {
    const Passes& layer = prices.layer(true, attention);
    return sum(layer.forward) + sum(layer.input_gradient) + sum(layer.weight_gradient);
  };
  const double softmax_us = all_us(model::AttentionKind::softmax);
  const double linear_us = all_us(model::AttentionKind::linear);
  CHECK(softmax_us > 2 * linear_us);
  const TrainingStep step = training_step(job);
  CHECK(step.step_us > 8 * 12 * softmax_us);
  CHECK(step.step_us < 8 * 12 * 1.5 * softmax_us);
  CHECK(step_bound_us(job, prices) <= step.step_us);
  CHECK(step_bound_us(job, prices) > 8 * 12 * softmax_us * (1 - 1e-6));
  // Divided in groups of four, each rank has three layers of four with linear attention.
  job.layout.sizes.virtual_pipeline = 3;
  const TrainingStep even = training_step(job);
  CHECK(even.step_us < 0.8 * step.step_us);
  CHECK(step_bound_us(job, prices) <= even.step_us);
  // With the rows of one load in all layers.
  const MoeLoad load = {prices.imbalance(), prices.imbalance()};
  const std::vector<Passes> least = least_moe_layers(prices, load, *job.model);
  CHECK(least.size() == 48 + 1);  // and that of a prediction depth, which no stage here has
  CHECK(step_bound_us(job, prices, least) <= even.step_us);
  CHECK(step_bound_us(job, prices, least) > 0.9 * step_bound_us(job, prices));
  CHECK(memory_bound(job) <= even.peak_memory());
}

TEST_CASE("bounds of drawn routing know each layer's attention") {
  TrainingJob job = next_on_h100(32'768, 4);
  job.layout.sizes.gpus = 32;
  job.layout.sizes.pipeline = 4;
  job.layout.sizes.virtual_pipeline = 12;
  job.layout.global_batch = 64;
  DrawnRouting drawn;
  drawn.router = routing::parse_router("dropless", 10, 10);
  job.routing = drawn;
  const auto loads = std::make_shared<const DrawnLoads>(job);
  const TrainingStep step = training_step(job, loads);
  const LayerPrices prices(job);
  const double bound = step_bound_us(job, prices, drawn_moe_layers(prices, *loads, true));
  CHECK(bound <= step.step_us);
  CHECK(bound > 0.9 * step.step_us);
  const double least = step_bound_us(job, prices, drawn_moe_layers(prices, *loads, false));
  CHECK(least < bound);
  CHECK(least > 0.9 * bound);
  CHECK(memory_bound(job, loads.get()) <= step.peak_memory());
}

TEST_CASE("core attention recomputed is that of layers which have it") {
  TrainingJob job = next_on_h100(8192, 4);
  job.recompute.add(model::RecomputeModule::core_attn);
  const LayerPrices prices(job);
  const std::size_t at = training::at(TrainingPart::recompute);
  CHECK(prices.layer(true, model::AttentionKind::linear).input_gradient[at] == 0);
  CHECK(prices.layer(true, model::AttentionKind::softmax).input_gradient[at] ==
        Approx(KernelPrices(job).core_attention_us(false)));
  CHECK(prices.attention_of_moe_layer(2) == model::AttentionKind::linear);
  CHECK(prices.attention_of_moe_layer(3) == model::AttentionKind::softmax);
  CHECK(prices.attention_of_moe_layer(48) == model::AttentionKind::softmax);  // of a depth
}

TEST_CASE("layouts that linear attention does not go with are refused") {
  const model::Model model = model::Model::load("qwen3-next-80b-a3b");
  TrainingJob job = next_on_h100(4096, 4);
  job.layout.sizes.expert = 1;
  job.layout.sizes.context = 8;
  CHECK_FALSE(parallel::layout_refusal(model, job.layout).has_value());
  model::Model halves = model;
  halves.linear->key_heads = 4;
  CHECK_THAT(*parallel::layout_refusal(halves, job.layout),
             ContainsSubstring("--tensor-parallel 1 x --context-parallel 8 does not divide the 4 "
                               "key heads of linear attention"));
  job.layout.sizes.context = 1;
  job.layout.sizes.tensor = 8;
  CHECK_FALSE(parallel::layout_refusal(model, job.layout).has_value());
  model::Model fewer = model;
  fewer.linear->key_heads = 4;
  CHECK_THAT(*parallel::layout_refusal(fewer, job.layout),
             ContainsSubstring("does not divide the 4 key heads of linear attention"));
}

TEST_CASE("of linear attention only the norm's input is offloaded") {
  TrainingJob job = next_on_h100(4096, 4);
  job.offload = model::parse_offload("attn_norm,mlp_norm,expert_fc1,moe_act", "here");
  CHECK_FALSE(option_refusal(job).has_value());
  job.offload = model::parse_offload("attn_proj,moe_act,core_attn", "here");
  CHECK_THAT(*option_refusal(job), ContainsSubstring("leave core_attn,attn_proj out"));
  job.model = qwen_on_h100(8, 1, 8, 8).model;
  CHECK_FALSE(option_refusal(job).has_value());
}
