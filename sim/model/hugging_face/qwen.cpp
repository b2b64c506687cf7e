#include "sim/model/hugging_face/qwen.hpp"

#include <fmt/format.h>

#include "sim/model/hugging_face/fields.hpp"

namespace moesim::model::hugging_face {
namespace {

std::int64_t size_or(const Node& node, const char* key, std::int64_t usual) {
  return node.has(key) ? node.positive_integer(key) : usual;
}

// Layers of the two kinds alone, the last of each group with softmax attention; layer_types stands
// in the place of the interval in files that transformers wrote.
int full_attention_period(const Node& node, const Model& model) {
  if (!node.has("layer_types")) return node.count_or("full_attention_interval", 4, 1);
  for (const std::string& type : node.texts("layer_types")) {
    if (type == "full_attention" || type == "linear_attention") continue;
    node.fail(fmt::format("{} is not known in this family of models", type), "layer_types");
  }
  return full_period(node, model);
}

void read_gated_delta_net(const Node& node, Model& model) {
  LinearAttention linear;
  linear.key_heads = size_or(node, "linear_num_key_heads", 16);
  linear.value_heads = size_or(node, "linear_num_value_heads", 32);
  linear.key_dim = size_or(node, "linear_key_head_dim", 128);
  linear.value_dim = size_or(node, "linear_value_head_dim", 128);
  linear.convolution = size_or(node, "linear_conv_kernel_dim", 4);
  linear.full_every = full_attention_period(node, model);
  if (linear.value_heads % linear.key_heads != 0) {
    node.fail(fmt::format("{} key heads do not divide {} value heads of linear attention",
                          linear.key_heads, linear.value_heads),
              "linear_num_value_heads");
  }
  if (linear.full_every != 1) model.linear = linear;
}

// The layer of a prediction depth has softmax attention (vllm, qwen3_next_mtp.py, qwen3_5_mtp.py);
// here it is one like the last.
void read_depths(const Node& node, Model& model, const char* key, int usual) {
  const bool like_last = !model.has_linear_attention(model.layers - 1);
  model.mtp_depths = node.count_or(key, like_last ? usual : 0);
  if (model.mtp_depths == 0 || like_last) return;
  node.fail("depths with softmax attention behind a layer with linear attention are not known",
            key);
}

// Sets the usual size and number of heads where the file does not say them.
void take_usual_heads(const Node& node, Model& model, std::int64_t kv_heads) {
  model.head_dim = size_or(node, "head_dim", 256);
  if (node.has("num_key_value_heads")) return;
  if (model.heads % kv_heads != 0) {
    node.fail(fmt::format("missing: the usual {} do not divide {} heads", kv_heads, model.heads),
              "num_key_value_heads");
  }
  model.kv_heads = kv_heads;
}

// What the dense models and those with experts have alike.
void read_qwen3_5_layers(const Node& node, Model& model, std::int64_t kv_heads) {
  read_sizes(node, model);
  take_usual_heads(node, model, kv_heads);
  model.query_key_norm = true;
  model.output_gate = node.boolean_or("attn_output_gate", true);
  read_gated_delta_net(node, model);
  if (node.boolean_or("mtp_use_dedicated_embeddings", false)) {
    node.fail("a prediction depth with an embedding of its own is not known",
              "mtp_use_dedicated_embeddings");
  }
  read_depths(node, model, "mtp_num_hidden_layers", 0);
}

}  // namespace

void read_qwen2(const Node& node, Model& model) {
  read_llama(node, model);
  if (node.boolean_or("use_sliding_window", false)) refuse_upper_windows(node, model);
}

void read_qwen3(const Node& node, Model& model) {
  read_qwen2(node, model);
  if (!node.has("head_dim")) model.head_dim = 128;
  model.query_key_norm = true;
}

void read_qwen_moe(const Node& node, Model& model) {
  read_llama(node, model);
  if (node.boolean_or("use_sliding_window", false)) {
    node.fail("windows in the upper layers alone are not known", "use_sliding_window");
  }
  MoeBlock moe = read_experts(node, {"num_experts", "moe_intermediate_size"});
  moe.shared_ffn = node.integer_or("shared_expert_intermediate_size", 0);
  moe.every = node.count_or("decoder_sparse_step", 1, 1);
  const std::vector<double> dense =
      node.has("mlp_only_layers") ? node.numbers("mlp_only_layers") : std::vector<double>();
  for (std::size_t place = 0; place < dense.size(); ++place) {
    if (dense[place] != static_cast<double>(place) || moe.every != 1) {
      node.fail("only the first layers of a model can be dense beside every MoE layer",
                "mlp_only_layers");
    }
  }
  moe.first_layer = static_cast<int>(dense.size());
  model.moe = moe;
}

void read_qwen3_moe(const Node& node, Model& model) {
  read_qwen_moe(node, model);
  model.query_key_norm = true;
}

// The configuration does not name its depth, which the weight files have.
void read_qwen3_next(const Node& node, Model& model) {
  read_qwen3_moe(node, model);
  take_usual_heads(node, model, 2);
  if (!node.has("shared_expert_intermediate_size")) model.moe->shared_ffn = 512;
  model.output_gate = true;
  read_gated_delta_net(node, model);
  read_depths(node, model, "num_nextn_predict_layers", 1);
}

void read_qwen3_5(const Node& node, Model& model) {
  read_qwen3_5_layers(node, model, 4);
  model.ffn = node.positive_integer("intermediate_size");
}

// Every layer holds experts.
void read_qwen3_5_moe(const Node& node, Model& model) {
  read_qwen3_5_layers(node, model, 2);
  if (node.has("mlp_only_layers") && !node.numbers("mlp_only_layers").empty()) {
    node.fail("layers without experts are not known in this family of models", "mlp_only_layers");
  }
  MoeBlock moe = read_experts(node, {"num_experts", "moe_intermediate_size"});
  moe.shared_ffn = node.integer_or("shared_expert_intermediate_size", 512);
  model.moe = moe;
}

}  // namespace moesim::model::hugging_face
