#include "sim/model/model.hpp"

#include <fmt/format.h>

#include <limits>

#include "sim/base/shipped.hpp"
#include "sim/model/hugging_face.hpp"
#include "sim/model/megatron/megatron_model.hpp"

namespace moesim::model {
namespace {

LatentAttention read_latent(const Node& node) {
  LatentAttention latent;
  latent.query_rank = node.integer("query_rank");
  latent.kv_rank = node.positive_integer("kv_rank");
  latent.rope_dim = node.positive_integer("rope_dim");
  latent.value_dim = node.positive_integer("value_dim");
  return latent;
}

AttentionWindow read_window(const Node& node) {
  AttentionWindow window;
  window.tokens = node.positive_integer("tokens");
  window.chunked = node.boolean_or("chunked", false);
  window.full_every = node.count_or("full_every", 0);
  return window;
}

LinearAttention read_linear(const Node& node) {
  LinearAttention linear;
  linear.key_heads = node.positive_integer("key_heads");
  linear.value_heads = node.positive_integer("value_heads");
  linear.key_dim = node.positive_integer("key_dim");
  linear.value_dim = node.positive_integer("value_dim");
  linear.convolution = node.positive_integer("convolution");
  linear.full_every = node.count_or("full_every", 0);
  return linear;
}

// What goes with linear attention, and with a gate of softmax attention.
void check_attention(const Node& root, const Model& model) {
  if (model.output_gate && model.latent) {
    root.fail("a gate on the output of latent attention is not known", "output_gate");
  }
  if (!model.linear) return;
  if (model.window || model.latent || model.encoder_layers > 0) {
    root.fail(
        fmt::format("linear attention beside {} is not known", model.window ? "layers with a window"
                                                               : model.latent ? "latent attention"
                                                                              : "an encoder"),
        "linear");
  }
  if (model.linear_layers() == 0) {
    root.fail("no layer has linear attention, as each has softmax attention: leave it out",
              "linear");
  }
  if (model.linear->value_heads % model.linear->key_heads != 0) {
    root.fail(fmt::format("{} key heads do not divide {} value heads of linear attention",
                          model.linear->key_heads, model.linear->value_heads),
              "linear");
  }
}

MoeBlock read_moe(const Node& node, int layers) {
  MoeBlock moe;
  moe.experts = node.count("experts");
  moe.router = node.text("router");
  moe.top_k = node.count("top_k");
  moe.expert_ffn = node.positive_integer("expert_ffn");
  moe.shared_ffn = node.integer_or("shared_ffn", 0);
  moe.biased = node.boolean_or("biased", false);
  moe.clamped = node.boolean_or("clamped", false);
  moe.first_layer = node.count_or("first_layer", 0);
  moe.every = node.count_or("every", 1, 1);
  if (moe.top_k > moe.experts) {
    node.fail(fmt::format("{} experts per token, but there are only {}", moe.top_k, moe.experts),
              "top_k");
  }
  const std::string base = moe.router.substr(0, moe.router.find('+'));
  if (base.starts_with("top") && base != "topk" && base != fmt::format("top{}", moe.top_k)) {
    node.fail(fmt::format("router '{}' does not go with top_k {}", moe.router, moe.top_k),
              "router");
  }
  if (layers - moe.first_layer < moe.every) {
    node.fail(fmt::format("no layer holds experts: first_layer {}, every {}, {} layers",
                          moe.first_layer, moe.every, layers),
              "first_layer");
  }
  return moe;
}

std::int64_t weights_of(const std::vector<Projection>& projections) {
  std::int64_t sum = 0;
  for (const Projection& projection : projections) sum += projection.n * projection.k;
  return sum;
}

// Refuses sizes whose products, with tokens and bytes, would be none of 64 bits.
void check_sizes(const Node& root, const Model& model) {
  const auto check = [&](const char* what, std::int64_t size, std::int64_t most) {
    if (size > most) root.fail(fmt::format("{} {}: at most {}", size, what, most));
  };
  constexpr std::int64_t most_layers = 65535;  // the schema's, for documents without one
  constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t most_values = std::int64_t{1} << 24;  // of a token
  check("layers", model.layers, most_layers);
  check("values of a hidden state", model.hidden, most_values);
  check("heads", model.heads, most_values);
  check("tokens of a vocabulary", model.vocabulary, most_tokens);
  check("tokens of a sequence", model.sequence_length, most_tokens);
  if (model.window) check("tokens of a window", model.window->tokens, most_tokens);
  // At least as many as there are.
  const LatentAttention latent = model.latent.value_or(LatentAttention{});
  const MoeBlock moe = model.moe.value_or(MoeBlock{});
  const auto real = [](std::int64_t size) { return static_cast<double>(size); };
  const double of_heads = (real(model.heads) + 2 * real(model.kv_heads)) *
                          (real(model.head_dim) + real(latent.rope_dim) + real(latent.value_dim));
  const LinearAttention linear = model.linear.value_or(LinearAttention{});
  const double of_linear = (real(linear.key_heads) + real(linear.value_heads)) *
                           (real(linear.key_dim) + real(linear.value_dim) + 2) *
                           (real(model.hidden) + real(linear.convolution));
  const double ranks = real(latent.query_rank) + real(latent.kv_rank) + real(latent.rope_dim);
  const double inner =
      real(model.ffn) + real(moe.shared_ffn) + real(moe.experts) * (real(moe.expert_ffn) + 1);
  const double layer = (model.output_gate ? 3 : 2) * of_heads * (real(model.hidden) + ranks) +
                       4 * of_linear + real(model.hidden) * (ranks + 3 * inner);
  const double all = 2 * (real(model.layers) * layer + real(model.vocabulary) * real(model.hidden));
  constexpr double most = 1e16;
  if (all > most) root.fail(fmt::format("up to {:.1e} parameters: at most {:.0e}", all, most));
}

}  // namespace

Model Model::load(const std::string& name_or_path) {
  if (MegatronArguments::is_path(name_or_path)) {
    return megatron_model(MegatronArguments::load(name_or_path));
  }
  return read(Document::load(find_document("models", name_or_path)));
}

Model Model::read(const Document& document) {
  if (is_hugging_face_config(document.root())) {
    Model model = read_hugging_face(document);
    check_sizes(document.root(), model);
    check_attention(document.root(), model);
    return model;
  }
  document.validate("model.schema");
  const Node root = document.root();
  Model model;
  model.name = root.text("name");
  model.source = root.text("source");
  model.layers = root.count("layers");
  model.encoder_layers = root.count_or("encoder_layers", 0);
  model.hidden = root.positive_integer("hidden");
  model.heads = root.positive_integer("heads");
  model.kv_heads = root.positive_integer("kv_heads");
  model.head_dim = root.positive_integer("head_dim");
  model.ffn = root.integer_or("ffn", 0);
  model.gated = root.boolean("gated");
  model.vocabulary = root.positive_integer("vocabulary");
  model.tied_embedding = root.boolean("tied_embedding");
  model.query_key_norm = root.boolean_or("query_key_norm", false);
  model.output_gate = root.boolean_or("output_gate", false);
  model.sequence_length = root.positive_integer("sequence_length");
  model.mtp_depths = root.count_or("mtp_depths", 0);
  if (const auto window = root.find("window")) model.window = read_window(*window);
  if (const auto latent = root.find("latent")) model.latent = read_latent(*latent);
  if (const auto linear = root.find("linear")) model.linear = read_linear(*linear);
  if (const auto moe = root.find("moe")) model.moe = read_moe(*moe, model.layers);
  check_sizes(root, model);
  check_attention(root, model);
  model.decoder = model.encoder_layers < model.layers;
  if (model.encoder_layers > model.layers) {
    root.fail(fmt::format("{} encoder layers of {} layers", model.encoder_layers, model.layers),
              "encoder_layers");
  }
  if (model.heads % model.kv_heads != 0) {
    root.fail(fmt::format("{} key/value heads do not divide {} heads", model.kv_heads, model.heads),
              "kv_heads");
  }
  if (model.ffn == 0 && model.dense_layers() > 0) {
    root.fail(fmt::format("missing, but {} layers have a dense FFN", model.dense_layers()), "ffn");
  }
  return model;
}

bool Model::is_moe_layer(int layer) const {
  if (!moe || layer < moe->first_layer) return false;
  return (layer - moe->first_layer) % moe->every == moe->every - 1;
}

bool Model::has_window(int layer) const {
  if (!window) return false;
  return window->full_every == 0 || layer % window->full_every != window->full_every - 1;
}

bool Model::has_linear_attention(int layer) const {
  if (!linear) return false;
  return linear->full_every == 0 || layer % linear->full_every != linear->full_every - 1;
}

int Model::linear_layers() const {
  if (!linear) return 0;
  return linear->full_every == 0 ? layers : layers - layers / linear->full_every;
}

int Model::moe_layers() const { return moe ? (layers - moe->first_layer) / moe->every : 0; }

int Model::attention_block_count() const {
  return layers + (encoder_layers > 0 ? layers - encoder_layers : 0);
}

std::vector<Projection> Model::attention_projections() const {
  if (!latent) {
    const std::int64_t queries = (output_gate ? 2 : 1) * heads;
    return {{"qkv", (queries + 2 * kv_heads) * head_dim, hidden},
            {"out", hidden, heads * head_dim}};
  }
  std::vector<Projection> projections;
  const std::int64_t queries = heads * query_key_dim();
  if (latent->query_rank > 0) {
    projections.push_back({"q_down", latent->query_rank, hidden});
    projections.push_back({"q_up", queries, latent->query_rank});
  } else {
    projections.push_back({"q", queries, hidden});
  }
  projections.push_back({"kv_down", latent->kv_rank + latent->rope_dim, hidden});
  projections.push_back({"kv_up", heads * (head_dim + latent->value_dim), latent->kv_rank});
  projections.push_back({"out", hidden, heads * latent->value_dim});
  return projections;
}

std::vector<Projection> Model::linear_projections() const {
  if (!linear) return {};
  return {{"in", linear->projected(), hidden}, {"out", hidden, linear->value_width()}};
}

std::int64_t Model::attention_parameters() const { return weights_of(attention_projections()); }

std::int64_t Model::linear_parameters() const {
  return linear ? weights_of(linear_projections()) + linear->convolution_parameters() : 0;
}

std::int64_t Model::embedding_parameters() const {
  return (tied_embedding ? 1 : 2) * vocabulary * hidden;
}

std::int64_t Model::norm_parameters() const {
  // One before each attention block and each FFN, one before the head (and one after the encoder),
  // and one inside each latent bottleneck.
  const std::int64_t outside = attention_block_count() + layers + 1 + (encoder_layers > 0 ? 1 : 0);
  const std::int64_t inside = latent ? latent->query_rank + latent->kv_rank : 0;
  return outside * hidden + inside * attention_block_count();
}

std::int64_t Model::dense_parameters(int experts) const {
  const std::int64_t with_experts = moe_layers_with(experts);
  const std::int64_t router_and_shared =
      with_experts > 0 ? hidden * experts + ffn_parameters(moe->shared_ffn) : 0;
  return embedding_parameters() + norm_parameters() +
         (attention_block_count() - linear_layers()) * attention_parameters() +
         linear_layers() * linear_parameters() + (layers - with_experts) * ffn_parameters(ffn) +
         with_experts * router_and_shared;
}

std::int64_t Model::total_parameters(int experts) const {
  return dense_parameters(experts) +
         static_cast<std::int64_t>(moe_layers_with(experts)) * experts * expert_parameters();
}

std::int64_t Model::active_parameters(int choices) const {
  if (!moe) return dense_parameters(0);
  return dense_parameters(moe->experts) +
         static_cast<std::int64_t>(moe_layers()) * choices * expert_parameters();
}

double Model::forward_flops(std::int64_t sequence, int experts, double expert_rows) const {
  const std::int64_t convolutions = linear ? linear_layers() * linear->convolution_parameters() : 0;
  const auto parameters =
      static_cast<double>(dense_parameters(experts) - norm_parameters() - convolutions -
                          embedding_parameters() + vocabulary * hidden);
  const auto expert = static_cast<double>(expert_parameters());
  // Query-key products and weighted values: 2 FLOPs per head, element and key seen; a causal
  // token sees half of its sequence on average.
  const double per_key = 2.0 * static_cast<double>(heads * (query_key_dim() + value_dim()));
  const int causal_layers = layers - encoder_layers - linear_layers();
  const int full_blocks = attention_block_count() - (layers - encoder_layers);
  const double keys = static_cast<double>(sequence) * (full_blocks + 0.5 * causal_layers);
  const double of_states = linear ? linear_layers() * linear->model_flops() : 0;
  return 2.0 * (parameters + moe_layers_with(experts) * expert_rows * expert) + per_key * keys +
         of_states;
}

}  // namespace moesim::model
