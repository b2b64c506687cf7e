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
  const char* const count = node.has("n_routed_experts") ? "n_routed_experts" : "num_experts";
  if (moe.experts % groups != 0) {
    node.fail(
        fmt::format("{} experts ({}) do not divide into {} groups", moe.experts, count, groups),
        "n_group");
  }
  if (moe.top_k > moe.experts / groups * kept_groups) {
    node.fail(fmt::format("{} of {} groups (n_group) of {} experts ({}) hold {}, and "
                          "a token chooses {} (num_experts_per_tok)",
                          kept_groups, groups, moe.experts, count,
                          moe.experts / groups * kept_groups, moe.top_k),
              "topk_group");
  }
  const std::string kept = fmt::format("{}:{}", groups, kept_groups);
  if (biased) return groups > 1 ? "bias-balanced+groups:" + kept : "bias-balanced";
  return groups > 1 ? "group-limited:" + kept : "dropless";
}

MoeBlock read_deepseek_experts(const Node& node) {
  MoeBlock moe = read_experts(node, {"n_routed_experts", "moe_intermediate_size"});
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
  const bool always_biased = model.name != "deepseek_v2";
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

// Latent attention, and one dense layer unless the configuration says how many.
void read_glm4_moe_lite(const Node& node, Model& model) {
  read_deepseek(node, model);
  if (!node.has("first_k_dense_replace")) model.moe->first_layer = 1;
}

void read_dots1(const Node& node, Model& model) {
  read_glm4_moe(node, model);
  refuse_upper_windows(node, model);
  model.query_key_norm = true;
}

void read_bailing_moe(const Node& node, Model& model) {
  read_llama(node, model);
  MoeBlock moe = read_experts(node, {"num_experts", "moe_intermediate_size"});
  moe.shared_ffn = node.count_or("num_shared_experts", 0) *
                   std::int64_t{node.count_or("moe_shared_expert_intermediate_size",
                                              static_cast<int>(moe.expert_ffn))};
  moe.first_layer = node.count_or("first_k_dense_replace", 0);
  const bool has_sigmoid = node.text_or("score_function", "softmax") == "sigmoid";
  moe.router =
      deepseek_router(node, moe, node.boolean_or("moe_router_enable_expert_bias", has_sigmoid));
  model.moe = moe;
  model.query_key_norm = node.boolean_or("use_qk_norm", false);
  model.mtp_depths = node.count_or("num_nextn_predict_layers", 0);
}

void read_ernie(const Node& node, Model& model) {
  read_llama(node, model);
  model.tied_embedding = node.boolean_or("tie_word_embeddings", true);
  MoeBlock moe = read_experts(node, {"moe_num_experts", "moe_intermediate_size", "moe_k"});
  moe.shared_ffn = node.count_or("moe_num_shared_experts", 0) * moe.expert_ffn;
  // The last of each so many layers, counted from the first one.
  moe.every = node.count_or("moe_layer_interval", 1, 1);
  moe.first_layer = node.count_or("moe_layer_start_index", 1) / moe.every * moe.every;
  const std::int64_t last = node.integer_or("moe_layer_end_index", -1);
  if (last != -1 && last < model.layers - 1) {
    node.fail(fmt::format("dense layers behind layer {} are not known", last),
              "moe_layer_end_index");
  }
  moe.router = "bias-balanced";
  model.moe = moe;
  model.mtp_depths = node.count_or("num_nextn_predict_layers", 0);
}

void read_hunyuan_moe(const Node& node, Model& model) {
  read_llama(node, model);
  if (node.has("attention_head_dim")) {
    model.head_dim = node.positive_integer("attention_head_dim");
  }
  if (node.boolean_or("use_cla", false)) {
    node.fail("keys and values that layers share are not known", "use_cla");
  }
  const char* const ffn =
      node.has("moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size";
  MoeBlock moe = read_experts(node, {"num_experts", ffn, "moe_topk"});
  moe.shared_ffn = moe.expert_ffn;  // one, unless the configuration says how many
  if (node.has("num_shared_expert")) {
    moe.shared_ffn *= same_in_all_layers(node, "num_shared_expert");
  }
  moe.first_layer = node.count_or("moe_layer_num_skipped", 0);
  model.moe = moe;
  model.query_key_norm = node.boolean_or("use_qk_norm", true);
}

}  // namespace moesim::model::hugging_face
