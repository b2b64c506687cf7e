#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/model/linear_attention.hpp"

namespace moesim::model {

// A weight matrix that every token passes: y[tokens, n] = x[tokens, k] W[k, n].
struct Projection {
  std::string name;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): queries and keys/values pass through
// low-rank bottlenecks.
struct LatentAttention {
  std::int64_t query_rank = 0;  // 0: queries are not compressed
  std::int64_t kv_rank = 0;
  std::int64_t rope_dim = 0;   // per head, beside head_dim
  std::int64_t value_dim = 0;  // per head
};

struct MoeBlock {
  int experts = 0;
  std::string router;           // the default router, e.g. "top2"
  int top_k = 0;                // the k that `router` names
  std::int64_t expert_ffn = 0;  // inner size of one expert
  std::int64_t shared_ffn = 0;  // inner size of all shared experts together, 0: none
  int first_layer = 0;          // layers below are dense
  int every = 1;                // of the layers from first_layer on, each every-th one is MoE,
                                // counted so that the last of each group is
  bool biased = false;          // the experts' products add biases; no count includes them
  bool clamped = false;         // what enters their activation is clamped first
};

// Layers in which a token attends to few of the tokens before it.
struct AttentionWindow {
  std::int64_t tokens = 0;
  bool chunked = false;  // blocks of `tokens` that attend inside themselves, not a sliding window
  int full_every = 0;    // the last of each so many layers attends to all tokens; 0: none does
};

// A transformer with or without MoE layers, from a JSON document (profiles/models, schema
// profiles/schema/model.schema.json). Sizes in elements; biases are left out everywhere.
//
// Functions that take `experts` count a model with so many experts per MoE layer; 0 means the
// dense counterpart, where every MoE layer has a dense FFN of size `ffn` instead.
struct Model {
  std::string name;
  std::string source;
  int layers = 0;
  int encoder_layers = 0;  // the first so many attend both ways; see attention_blocks
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;  // inner size of a dense layer's FFN; 0: there is no dense layer
  bool gated = true;     // SwiGLU: three matrices; else two
  std::int64_t vocabulary = 0;
  bool tied_embedding = false;
  bool query_key_norm = false;  // each head's queries and keys are normed before attention
  bool output_gate = false;     // softmax attention's output times a sigmoid as wide as the queries
  bool decoder = true;          // the last layer attends causally
  std::int64_t sequence_length = 0;
  int mtp_depths = 0;  // multi-token-prediction modules; no count below includes them
  std::vector<std::string> left_out;  // keys of its config.json that describe what is not here
  std::optional<AttentionWindow> window;
  std::optional<LatentAttention> latent;
  std::optional<LinearAttention> linear;  // not beside a window, latent attention or an encoder
  std::optional<MoeBlock> moe;

  // Shipped name or path. Throws UsageError naming file and key.
  static Model load(const std::string& name_or_path);
  static Model read(const Document& document);

  bool is_moe_layer(int layer) const;
  // Whether the layer of a prediction depth, which is like the last one, has experts.
  bool is_moe_prediction() const { return is_moe_layer(layers - 1); }
  int moe_layers() const;
  int dense_layers() const { return layers - moe_layers(); }
  bool has_dense_counterpart() const { return ffn > 0; }

  // Attention blocks of a layer: 2 in a decoder layer above encoder layers (self-attention, then
  // attention to the encoder's output), else 1.
  int attention_blocks(int layer) const { return cross_attends(layer) ? 2 : 1; }
  bool is_causal(int layer) const { return layer >= encoder_layers; }
  bool cross_attends(int layer) const { return encoder_layers > 0 && layer >= encoder_layers; }
  bool has_window(int layer) const;
  bool has_linear_attention(int layer) const;
  int linear_layers() const;  // that have it
  double linear_share() const { return static_cast<double>(linear_layers()) / layers; }

  // Widths per head: what a query-key product and a value row hold.
  std::int64_t query_key_dim() const { return head_dim + (latent ? latent->rope_dim : 0); }
  std::int64_t value_dim() const { return latent ? latent->value_dim : head_dim; }

  // The projections of one softmax attention block, in order; queries, keys and values in one GEMM
  // where they are not compressed, with the gate of the output where there is one.
  std::vector<Projection> attention_projections() const;
  // The projections of linear attention: none without it.
  std::vector<Projection> linear_projections() const;
  // Weights: per block, per FFN, per expert, and in total (all experts). Linear attention has its
  // convolution's too; decay and norm, two and one value per head, are left out.
  std::int64_t attention_parameters() const;
  std::int64_t linear_parameters() const;
  std::int64_t ffn_parameters(std::int64_t inner) const { return ffn_matrices() * hidden * inner; }
  std::int64_t ffn_matrices() const { return gated ? 3 : 2; }
  std::int64_t expert_parameters() const { return moe ? ffn_parameters(moe->expert_ffn) : 0; }
  std::int64_t embedding_parameters() const;
  std::int64_t norm_parameters() const;
  std::int64_t dense_parameters(int experts) const;  // everything outside the experts
  std::int64_t total_parameters(int experts) const;
  // Weights that one token uses: everything outside the experts, and `choices` experts per layer.
  std::int64_t active_parameters(int choices) const;

  // FLOPs of one forward pass per token (multiply-add = 2), attention over `sequence` included
  // (half of it where it is causal; windows are left out), embedding lookup not. `expert_rows` is
  // the number of expert FFN rows computed per token and MoE layer: CF for a padded exchange, k
  // without capacity.
  double forward_flops(std::int64_t sequence, int experts, double expert_rows) const;

 private:
  int moe_layers_with(int experts) const { return experts > 0 ? moe_layers() : 0; }
  int attention_block_count() const;
};

}  // namespace moesim::model
