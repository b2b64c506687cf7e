#include "sim/model/hugging_face/shared_experts.hpp"

#include <fmt/format.h>

#include "sim/model/hugging_face/fields.hpp"

namespace moesim::model::hugging_face {
namespace {

// The best k of all experts or of some groups, with a bias that balances loads or without.
std::string deepseek_router(const Node& node, const MoeBlock& moe, bool biased) {
  const std::int64_t groups = node.integer_or("n_group", 1);
  const std::int64_t kept_groups = node.integer_or("topk_group", 1);
  if (kept_groups < 1 || kept_groups > groups) {
    node.fail(fmt::format("{} of {} groups (n_group) cannot be kept", kept_groups, groups),
              "topk_group");
  }
  if (moe.experts % groups != 0) {
    node.fail(fmt::format("{} experts (n_routed_experts) do not divide into {} groups", moe.experts,
                          groups),
              "n_group");
  }
  if (moe.top_k > moe.experts / groups * kept_groups) {
    node.fail(fmt::format("{} of {} groups (n_group) of {} experts (n_routed_experts) hold {}, and "
                          "a token chooses {} (num_experts_per_tok)",
                          kept_groups, groups, moe.experts, moe.experts / groups * kept_groups,
                          moe.top_k),
              "topk_group");
  }
  const std::string kept = fmt::format("{}:{}", groups, kept_groups);
  if (biased) return groups > 1 ? "bias-balanced+groups:" + kept : "bias-balanced";
  return groups > 1 ? "group-limited:" + kept : "dropless";
}

MoeBlock read_deepseek_experts(const Node& node) {
  MoeBlock moe = read_experts(node, "n_routed_experts", "moe_intermediate_size");
  moe.shared_ffn = node.count_or("n_shared_experts", 0) * moe.expert_ffn;
  moe.first_layer = node.count_or("first_k_dense_replace", 0);
  if (node.integer_or("moe_layer_freq", 1) != 1) {
    node.fail("only 1 is known: every layer from first_k_dense_replace on holds experts",
              "moe_layer_freq");
  }
  return moe;
}

}  // namespace

void read_deepseek(const Node& node, Model& model) {
  read_llama(node, model);
  LatentAttention latent;
  latent.query_rank = node.integer_or("q_lora_rank", 0);
  latent.kv_rank = node.positive_integer("kv_lora_rank");
  latent.rope_dim = node.positive_integer("qk_rope_head_dim");
  latent.value_dim = node.positive_integer("v_head_dim");
  model.head_dim = node.positive_integer("qk_nope_head_dim");
  model.latent = latent;
  model.moe = read_deepseek_experts(node);
  // transformers' own DeepseekV3Config does not say it: its router has no other.
  const std::string type = node.text_or("model_type", "");
  const bool always_biased = type == "deepseek_v3" || type == "kimi_k2";
  const std::string method = node.text_or("topk_method", always_biased ? "noaux_tc" : "greedy");
  if (method == "greedy") {
    model.moe->router = "dropless";
  } else if (method == "noaux_tc" || method == "group_limited_greedy") {
    model.moe->router = deepseek_router(node, *model.moe, method == "noaux_tc");
  } else {
    node.fail(fmt::format("unknown method '{}': known are greedy, group_limited_greedy, noaux_tc",
                          method),
              "topk_method");
  }
  model.mtp_depths = node.count_or("num_nextn_predict_layers", 0);
}

void read_glm4_moe(const Node& node, Model& model) {
  read_llama(node, model);
  model.moe = read_deepseek_experts(node);
  model.moe->router = deepseek_router(node, *model.moe, true);
  model.query_key_norm = node.boolean_or("use_qk_norm", false);
  model.mtp_depths = node.count_or("num_nextn_predict_layers", 0);
}

}  // namespace moesim::model::hugging_face
