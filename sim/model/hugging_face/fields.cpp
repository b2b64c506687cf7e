#include "sim/model/hugging_face/fields.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moesim::model::hugging_face {
namespace {

constexpr std::int64_t working_length = 4096;

// The library writes some families' experts by another name than the checkpoint's authors do.
int count_experts(const Node& node, const char* usual) {
  std::string key = usual;
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!node.has(name) || name == key) continue;
    if (!node.has(key)) {
      key = name;
    } else if (node.count(name) != node.count(key)) {
      node.fail(fmt::format("{}, but {} is {}", node.count(name), key, node.count(key)), name);
    }
  }
  return node.count(key);
}

}  // namespace

void read_sizes(const Node& node, Model& model) {
  model.layers = node.count("num_hidden_layers");
  model.hidden = node.positive_integer("hidden_size");
  model.heads = node.positive_integer("num_attention_heads");
  model.kv_heads =
      node.has("num_key_value_heads") ? node.positive_integer("num_key_value_heads") : model.heads;
  if (model.heads % model.kv_heads != 0) {
    node.fail(fmt::format("{} key/value heads do not divide {} heads", model.kv_heads, model.heads),
              "num_key_value_heads");
  }
  model.head_dim =
      node.has("head_dim") ? node.positive_integer("head_dim") : model.hidden / model.heads;
  model.vocabulary = node.positive_integer("vocab_size");
  model.tied_embedding = node.boolean_or("tie_word_embeddings", false);
  model.sequence_length =
      std::min(working_length, node.has("max_position_embeddings")
                                   ? node.positive_integer("max_position_embeddings")
                                   : working_length);
}

MoeBlock read_experts(const Node& node, const char* count, const char* ffn) {
  MoeBlock moe;
  moe.experts = count_experts(node, count);
  moe.top_k = node.count("num_experts_per_tok");
  if (moe.top_k > moe.experts) {
    node.fail(fmt::format("{} experts per token, but there are only {}", moe.top_k, moe.experts),
              "num_experts_per_tok");
  }
  moe.expert_ffn = node.count(ffn);
  moe.router = "dropless";
  return moe;
}

int period_of(const std::vector<bool>& full, const Node& node, const char* key) {
  const auto first = std::find(full.begin(), full.end(), true);
  if (first == full.end()) return 0;
  const auto period = static_cast<std::size_t>(first - full.begin()) + 1;
  for (std::size_t layer = 0; layer < full.size(); ++layer) {
    if (full[layer] != (layer % period == period - 1)) {
      node.fail(fmt::format("layer {} breaks the pattern that every {}th layer attends fully, the "
                            "only one that a model can have",
                            layer, period),
                key);
    }
  }
  return static_cast<int>(period);
}

int full_period(const Node& node, const Model& model) {
  std::vector<bool> full;
  for (const std::string& type : node.texts("layer_types")) {
    full.push_back(type == "full_attention");
  }
  if (full.size() != static_cast<std::size_t>(model.layers)) {
    node.fail(fmt::format("{} entries for {} layers", full.size(), model.layers), "layer_types");
  }
  return period_of(full, node, "layer_types");
}

void read_sliding_window(const Node& node, Model& model) {
  if (!node.has("sliding_window")) return;
  AttentionWindow window;
  window.tokens = node.positive_integer("sliding_window");
  if (node.has("layer_types")) window.full_every = full_period(node, model);
  model.window = window;
}

void read_llama(const Node& node, Model& model) {
  read_sizes(node, model);
  model.ffn = node.positive_integer("intermediate_size");
}

}  // namespace moesim::model::hugging_face
