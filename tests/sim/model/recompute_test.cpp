#include "sim/model/memory/recompute.hpp"

#include "sim/base/error.hpp"
#include "sim/model/training_work.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

RecomputeWork work_again(const Model& model, int layer, const char* text) {
  return recompute_work(model, layer, parse_recompute(text, "--recompute"), 4096, 8);
}

}  // namespace

TEST_CASE("recomputation is read and named again") {
  for (const char* text : {"none", "layernorm", "layernorm,moe_act", "mla_up_proj,core_attn,moe",
                           "full", "full:uniform:4", "full:block:2"}) {
    CAPTURE(text);
    CHECK(name_of(parse_recompute(text, "--recompute")) == text);
  }
  CHECK(name_of(parse_recompute("moe_act,layernorm", "")) == "layernorm,moe_act");
  CHECK_THROWS_WITH(parse_recompute("moe-act", "--recompute"), ContainsSubstring("moe_act"));
  CHECK_THROWS_WITH(parse_recompute("selective", "--recompute"),
                    ContainsSubstring("full:block:N, or one or more of layernorm, moe_act"));
  CHECK_THROWS_WITH(
      parse_recompute("full,moe", "--recompute"),
      ContainsSubstring("stands alone, not in a list of modules (layernorm, moe_act"));
  CHECK_THROWS_WITH(parse_recompute("full:2", "--recompute"), ContainsSubstring("full:uniform:N"));
  CHECK_THROWS_AS(parse_recompute("full:block:0", "--recompute"), moesim::UsageError);
  CHECK_THROWS_AS(parse_recompute("", "--recompute"), moesim::UsageError);
  CHECK_THROWS_WITH(parse_recompute("moe,layernorm,moe", "--recompute"),
                    ContainsSubstring("--recompute: 'moe' is named twice"));
}

TEST_CASE("what each module computes again") {
  const Model model = Model::load("deepseek-v3");
  const LayerWork layer = layer_work(model, 3, 4096);
  // Norms and activations: no GEMM, no exchange.
  const RecomputeWork light = work_again(model, 3, "layernorm,moe_act");
  CHECK(light.norms);
  CHECK(light.expert_activation);
  CHECK(light.gemm_flops == 0);
  CHECK_FALSE((light.dispatch || light.tensor_exchange || light.context_exchange));
  // 2 r_q a (d + e) + 2 r a (d + u).
  CHECK(work_again(model, 3, "mla_up_proj").gemm_flops ==
        2.0 * 1536 * 128 * 192 + 2.0 * 512 * 128 * 256);
  const RecomputeWork core = work_again(model, 3, "core_attn");
  CHECK(core.core_attention_flops == layer.core_attention);
  CHECK(core.gemm_flops == 0);
  CHECK(core.context_exchange);
  const RecomputeWork moe = work_again(model, 3, "moe,moe_act,shared_experts");
  CHECK(moe.gemm_flops == layer.router + layer.shared_experts + 8 * layer.expert_row);
  CHECK(moe.dispatch);
  CHECK(work_again(model, 3, "shared_experts").gemm_flops == layer.shared_experts);
  CHECK_FALSE(work_again(model, 3, "shared_experts").dispatch);
  // A dense layer has no experts, an MoE layer no dense FFN.
  CHECK(work_again(model, 0, "moe,shared_experts").gemm_flops == 0);
  CHECK(work_again(model, 3, "mlp").gemm_flops == 0);
  CHECK(work_again(model, 0, "mlp").gemm_flops == layer_work(model, 0, 4096).dense_ffn);
  CHECK(work_again(Model::load("mixtral-8x7b"), 0, "mla_up_proj").gemm_flops == 0);
  // All of the forward pass.
  const RecomputeWork full = work_again(model, 3, "full");
  CHECK(full.gemm_flops + full.core_attention_flops == Approx(layer.total(8)));
  CHECK((full.dispatch && full.tensor_exchange && full.context_exchange));
}
