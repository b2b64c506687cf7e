#include "sim/model/hugging_face/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace moesim::model::hugging_face {
namespace {

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
  return same_in_all_layers(node, key.c_str());
}

// "full_attention, sliding_attention, ..." of as many layers as there are.
std::vector<std::string> texts_of_layers(const Node& node, const char* key, int layers) {
  std::vector<std::string> texts = node.texts(key);
  if (texts.size() != static_cast<std::size_t>(layers)) {
    node.fail(fmt::format("{} entries for {} layers", texts.size(), layers), key);
  }
  return texts;
}

}  // namespace

void read_sizes(const Node& node, Model& model, std::int64_t head_dim) {
  model.layers = node.count("num_hidden_layers");
  model.hidden = node.positive_integer("hidden_size");
  model.heads = node.positive_integer("num_attention_heads");
  model.kv_heads =
      node.has("num_key_value_heads") ? node.positive_integer("num_key_value_heads") : model.heads;
  if (model.heads % model.kv_heads != 0) {
    node.fail(fmt::format("{} key/value heads do not divide {} heads", model.kv_heads, model.heads),
              "num_key_value_heads");
  }
  if (head_dim == 0) head_dim = model.hidden / model.heads;
  model.head_dim = node.has("head_dim") ? node.positive_integer("head_dim") : head_dim;
  model.vocabulary = node.positive_integer("vocab_size");
  model.tied_embedding = node.boolean_or("tie_word_embeddings", false);
  model.sequence_length =
      std::min(working_length, node.has("max_position_embeddings")
                                   ? node.positive_integer("max_position_embeddings")
                                   : working_length);
}

MoeBlock read_experts(const Node& node, const ExpertKeys& keys) {
  MoeBlock moe;
  moe.experts = count_experts(node, keys.count);
  moe.top_k = same_in_all_layers(node, keys.top_k);
  if (moe.top_k > moe.experts) {
    node.fail(fmt::format("{} experts per token, but there are only {}", moe.top_k, moe.experts),
              keys.top_k);
  }
  moe.expert_ffn = same_in_all_layers(node, keys.ffn);
  moe.router = "dropless";
  return moe;
}

int same_in_all_layers(const Node& node, const char* key) {
  const std::optional<Node> value = node.find(key);
  if (!value || !value->json().is_array()) return node.count(key);
  const std::vector<double> all = node.numbers(key);
  for (std::size_t layer = 0; layer < all.size(); ++layer) {
    if (all[layer] == all.front()) continue;
    node.fail(fmt::format("{} in layer {}, {} before: all layers of a model must have the same",
                          all[layer], layer, all.front()),
              key);
  }
  const bool is_count = !all.empty() && all.front() >= 1 &&
                        all.front() <= std::numeric_limits<int>::max() &&
                        all.front() == std::floor(all.front());
  if (!is_count) node.fail("expected whole numbers from 1", key);
  return static_cast<int>(all.front());
}

int period_of(const std::vector<bool>& full, const Node& node, const char* key) {
  const auto first = std::find(full.begin(), full.end(), true);
  if (first == full.end()) return 0;
  const auto period = static_cast<std::size_t>(first - full.begin()) + 1;
  for (std::size_t layer = 0; layer < full.size(); ++layer) {
    if (full[layer] != (layer % period == period - 1)) {
      const std::string pattern = period == 1
                                      ? "all layers attend fully"
                                      : fmt::format("every {}th layer attends fully", period);
      node.fail(
          fmt::format("layer {} breaks the pattern that {}, the only one that a model can have",
                      layer, pattern),
          key);
    }
  }
  return static_cast<int>(period);
}

int full_period(const Node& node, const Model& model) {
  std::vector<bool> full;
  for (const std::string& type : texts_of_layers(node, "layer_types", model.layers)) {
    full.push_back(type == "full_attention");
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

void refuse_upper_windows(const Node& node, const Model& model) {
  if (!node.has("sliding_window") || !node.boolean_or("use_sliding_window", true)) return;
  if (node.count_or("max_window_layers", 0) >= model.layers) return;
  node.fail("windows in the layers from max_window_layers on are not known", "sliding_window");
}

void check_layers(const Node& node, const Model& model) {
  if (node.has("layer_types") && !model.window) {
    for (const std::string& type : texts_of_layers(node, "layer_types", model.layers)) {
      if (type != "sliding_attention" && type != "chunked_attention") continue;
      node.fail(fmt::format("{} is not known in this family of models", type), "layer_types");
    }
  }
  if (!node.has("mlp_layer_types")) return;
  int layer = 0;
  for (const std::string& type : texts_of_layers(node, "mlp_layer_types", model.layers)) {
    if ((type == "sparse") != model.is_moe_layer(layer)) {
      node.fail(fmt::format("layer {} is {}, where other keys put {}", layer, type,
                            model.is_moe_layer(layer) ? "experts" : "a dense FFN"),
                "mlp_layer_types");
    }
    ++layer;
  }
}

}  // namespace moesim::model::hugging_face
