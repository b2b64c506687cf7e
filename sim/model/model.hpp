#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  std::int64_t rope_dim = 0;    // per head, beside head_dim
  std::int64_t value_dim = 0;   // per head
};

struct MoeBlock {
  int experts = 0;
  std::string router;              // the default router, e.g. "top2"
  int top_k = 0;                   // the k that `router` names
  std::int64_t expert_ffn = 0;     // inner size of one expert
  std::int64_t shared_ffn = 0;     // inner size of all shared experts together, 0: none
  int first_layer = 0;             // layers below are dense
  int every = 1;                   // of the layers from first_layer on, each every-th one is MoE,
                                   // counted so that the last of each group is
};

// A transformer with or without MoE layers, from a JSON document (profiles/models, schema
// profiles/schema/model.schema.json). Sizes in elements.
struct Model {
  std::string name;
  std::string source;
  int layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;            // inner size of a dense layer's FFN
  bool gated = true;               // SwiGLU: three matrices; else two
  std::int64_t vocabulary = 0;
  bool tied_embedding = false;
  bool decoder = true;             // causal attention
  std::int64_t sequence_length = 0;
  std::optional<LatentAttention> latent;
  std::optional<MoeBlock> moe;

  // Shipped name or path. Throws UsageError naming file and key.
  static Model load(const std::string& name_or_path);

  bool is_moe_layer(int layer) const;
  int moe_layers() const;
  int dense_layers() const { return layers - moe_layers(); }

  // The projections of one attention block, biases left out.
  std::vector<Projection> attention_projections() const;
  // Weights: per layer, per expert, and in total (all experts). `experts` overrides moe->experts.
  std::int64_t attention_parameters() const;
  std::int64_t ffn_parameters(std::int64_t inner) const;
  std::int64_t expert_parameters() const { return moe ? ffn_parameters(moe->expert_ffn) : 0; }
  std::int64_t embedding_parameters() const;
  std::int64_t dense_parameters(int experts) const;  // everything outside the experts
  std::int64_t total_parameters(int experts) const;

  // FLOPs of one forward pass per token (multiply-add = 2), causal attention over `sequence`
  // included, embedding lookup not. `expert_rows` is the number of expert FFN rows computed per
  // token and MoE layer: CF for a padded exchange, k without capacity.
  double forward_flops(std::int64_t sequence, int experts, double expert_rows) const;
};

}  // namespace moesim::model
