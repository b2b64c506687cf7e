#include "sim/model/memory/stage_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/base/units.hpp"

namespace moesim::model {
namespace {

// Weights of one rank: `split` over tensor ranks, and whole on each of them.
struct Weights {
  double split = 0;       // in GEMMs
  double whole = 0;       // in GEMMs
  double split_rest = 0;  // embedding, head
  double whole_rest = 0;  // norms, router

  void add(const Weights& other, double times) {
    split += times * other.split;
    whole += times * other.whole;
    split_rest += times * other.split_rest;
    whole_rest += times * other.whole_rest;
  }
};

Weights attention_weights(const Model& model, const ShardSizes& shards) {
  Weights weights;
  for (const Projection& projection : model.attention_projections()) {
    const bool down = projection.name == "q_down" || projection.name == "kv_down";
    (down ? weights.whole : weights.split) += real(projection.n * projection.k);
  }
  if (!model.latent) {
    weights.split +=
        2 * real((spread_kv_heads(model, shards) - model.kv_heads) * model.head_dim * model.hidden);
  }
  const std::int64_t inside = model.latent ? model.latent->query_rank + model.latent->kv_rank : 0;
  weights.whole_rest = real(model.hidden + inside);
  return weights;
}

Weights linear_weights(const Model& model) {
  Weights weights;
  for (const Projection& projection : model.linear_projections()) {
    weights.split += real(projection.n * projection.k);
  }
  weights.split_rest = real(model.linear->convolution_parameters());
  weights.whole_rest = real(model.hidden);
  return weights;
}

// The weights of a layer beside its attention.
Weights ffn_weights(const Model& model, LayerKind kind) {
  Weights weights;
  weights.whole_rest = real(model.hidden);
  if (kind == LayerKind::dense) {
    weights.split += real(model.ffn_parameters(model.ffn));
  } else {
    weights.split += real(model.ffn_parameters(model.moe->shared_ffn));
    // Copies of an expert share its score.
    weights.whole_rest += real(model.hidden * model.moe->experts);
  }
  return weights;
}

// A prediction depth: a layer like the last one, the projection, norms of both inputs and its own.
Weights mtp_weights(const Model& model, const ShardSizes& shards) {
  Weights weights = attention_kind(model, model.layers) == AttentionKind::linear
                        ? linear_weights(model)
                        : attention_weights(model, shards);
  weights.add(ffn_weights(model, last_kind(model)), 1);
  weights.split += 2 * real(model.hidden * model.hidden);
  weights.whole_rest += 3 * real(model.hidden);
  return weights;
}

double expert_weights(const Model& model, const ShardSizes& shards, int experts) {
  return real(experts) * real(model.expert_parameters()) / (shards.expert * shards.expert_tensor);
}

double shared(double bytes, double count, int replicas, bool shards) {
  return shards ? bytes * count / replicas : bytes * count;
}

StageContent layers_of_kinds(double dense, double moe, double linear) {
  StageContent content;
  content.dense_layers = dense;
  content.moe_layers = moe;
  content.linear_layers = linear;
  return content;
}

// One of a stage's layers, as far as its attention goes: linear if it has any, which has more
// weights in all known models, or else softmax.
double one_linear(const StageContent& stage) { return stage.linear_layers > 0 ? 1 : 0; }

// One layer of a stage, if it has any: of that kind, or else of the other.
StageContent one_layer(const StageContent& stage, bool is_moe) {
  const bool has_moe = stage.moe_layers > 0;
  const bool has_dense = stage.dense_layers > 0;
  const bool takes_moe = has_moe && (is_moe || !has_dense);
  return layers_of_kinds(has_dense && !takes_moe ? 1 : 0, takes_moe ? 1 : 0, one_linear(stage));
}

// Any two that follow each other in a stage, or one alone: of the embedding, layers, prediction
// depths, which read the embedding first, and the head.
std::vector<StageContent> neighbours_of(const Model& model, const StageContent& stage) {
  std::vector<StageContent> found = {one_layer(stage, false), one_layer(stage, true)};
  std::array<std::array<bool, 3>, 3> known{};  // pairs by their MoE layers, those with linear
  for (int layer = 1; layer < model.layers; ++layer) {
    const int moe = int{model.is_moe_layer(layer - 1)} + int{model.is_moe_layer(layer)};
    const int linear =
        int{model.has_linear_attention(layer - 1)} + int{model.has_linear_attention(layer)};
    bool& is_known = known.at(moe).at(linear);
    if (is_known) continue;
    is_known = true;
    if (stage.moe_layers < moe || stage.dense_layers < 2 - moe) continue;
    if (stage.linear_layers < linear || stage.layers() - stage.linear_layers < 2 - linear) continue;
    found.push_back(layers_of_kinds(2 - moe, moe, linear));
  }
  if (stage.embedding) {
    found.push_back(one_layer(stage, model.is_moe_layer(0)));
    found.back().embedding = true;
  }
  StageContent depth;
  depth.mtp_depths = 1;
  if (stage.mtp_depths > 0) found.push_back(depth);  // with the embedding
  if (stage.head) {
    depth.embedding_beside = true;
    found.push_back(stage.mtp_depths > 0 ? depth
                                         : one_layer(stage, last_kind(model) == LayerKind::moe));
    found.back().head = true;
  }
  return found;
}

// A stage, and how its states are divided.
struct DividedStage {
  const Model& model;
  const StageContent& content;
  const ShardSizes& shards;
  const StateRules& rules;
  int experts = 0;
};

// The bytes of the neighbouring layers that need most, counting what replicas of an optimizer
// instance share: weights without replicas lie whole where they are.
template <class DenseBytes>
double largest_neighbours(const DividedStage& stage, const DenseBytes& dense_bytes,
                          double expert_element) {
  const ShardSizes& shards = stage.shards;
  const bool shares_dense = sharing_ranks(shards.dense_replicas(), stage.rules) > 1;
  const bool shares_experts = sharing_ranks(shards.expert_data, stage.rules) > 1;
  double most = 0;
  for (const StageContent& neighbours : neighbours_of(stage.model, stage.content)) {
    const StageParameters held = stage_parameters(stage.model, neighbours, shards, stage.experts);
    most = std::max(most, (shares_dense ? dense_bytes(held) : 0) +
                              (shares_experts ? expert_element * held.expert : 0));
  }
  return most;
}

}  // namespace

LayerKind last_kind(const Model& model) {
  return model.is_moe_prediction() ? LayerKind::moe : LayerKind::dense;
}

AttentionKind attention_kind(const Model& model, int layer) {
  return model.has_linear_attention(std::min(layer, model.layers - 1)) ? AttentionKind::linear
                                                                       : AttentionKind::softmax;
}

double moe_layers_with_depths(const Model& model, const StageContent& content) {
  return content.moe_layers + (last_kind(model) == LayerKind::moe ? content.mtp_depths : 0);
}

std::int64_t spread_kv_heads(const Model& model, const ShardSizes& shards) {
  return std::max<std::int64_t>(model.kv_heads, shards.tensor);
}

StageContent layers_of(const Model& model, int first, int count) {
  StageContent content;
  content.first_layer = first;
  for (int layer = first; layer < first + count; ++layer) {
    (model.is_moe_layer(layer) ? content.moe_layers : content.dense_layers) += 1;
    content.linear_layers += model.has_linear_attention(layer) ? 1 : 0;
  }
  return content;
}

double dense_among_first(const Model& model, const StageContent& content, double count) {
  const double most = std::min(count, content.layers());
  if (content.first_layer < 0) return std::min(most, content.dense_layers);
  return layers_of(model, content.first_layer, static_cast<int>(most)).dense_layers;
}

double linear_among_first(const Model& model, const StageContent& content, double count) {
  const double most = std::min(count, content.layers());
  if (most <= 0) return 0;
  if (content.first_layer < 0) return most * content.linear_layers / content.layers();
  return layers_of(model, content.first_layer, static_cast<int>(most)).linear_layers;
}

StageParameters stage_parameters(const Model& model, const StageContent& content,
                                 const ShardSizes& shards, int experts) {
  Weights sum;
  if (content.dense_layers > 0) {
    sum.add(ffn_weights(model, LayerKind::dense), content.dense_layers);
  }
  if (content.moe_layers > 0) {
    sum.add(ffn_weights(model, LayerKind::moe), content.moe_layers);
  }
  sum.add(attention_weights(model, shards), content.layers() - content.linear_layers);
  if (content.linear_layers > 0) sum.add(linear_weights(model), content.linear_layers);
  if (content.mtp_depths > 0) sum.add(mtp_weights(model, shards), content.mtp_depths);
  const bool embeds = content.embedding || (content.mtp_depths > 0 && !content.embedding_beside);
  const bool one_matrix = model.tied_embedding && embeds && content.head;
  const int matrices = one_matrix ? 1 : int{embeds} + int{content.head};
  sum.split_rest += matrices * real(model.vocabulary * model.hidden);
  if (content.head) sum.whole_rest += real(model.hidden);
  StageParameters parameters;
  parameters.gemm = sum.split / shards.tensor + sum.whole;
  parameters.dense = parameters.gemm + sum.split_rest / shards.tensor + sum.whole_rest;
  if (model.moe) {
    parameters.expert =
        moe_layers_with_depths(model, content) * expert_weights(model, shards, experts);
  }
  return parameters;
}

int sharing_ranks(int replicas, const StateRules& rules) {
  const int instances = rules.optimizer_instances;
  if (instances < 1 || (replicas > 1 && replicas % instances != 0)) {
    throw UsageError(
        fmt::format("{} replicas do not divide into {} optimizer instances", replicas, instances));
  }
  return replicas > 1 ? replicas / instances : 1;
}

int owners(const ShardSizes& shards, const StateRules& rules) {
  return rules.zero >= 1 ? shards.stage_copies : 1;
}

StateBytes state_bytes(const StageParameters& parameters, const ShardSizes& shards,
                       const StateRules& rules) {
  const double gemm_weight =
      stored_weight_bytes(rules.precision, rules.gathers_low(), rules.transposed_copies);
  const double dense_weights =
      gemm_weight * parameters.gemm + bf16_bytes * (parameters.dense - parameters.gemm);
  const int dense = sharing_ranks(shards.dense_replicas(), rules);
  const int expert = sharing_ranks(shards.expert_data, rules);
  const auto both = [&](double bytes, bool split) {
    return shared(bytes, parameters.dense, dense, split) +
           shared(bytes, parameters.expert, expert, split);
  };
  StateBytes bytes;
  bytes.weights = shared(1, dense_weights, dense, rules.zero >= 3) +
                  shared(gemm_weight, parameters.expert, expert, rules.zero >= 3);
  bytes.gradients = both(rules.gradient_bytes, rules.zero >= 2);
  bytes.optimizer =
      both(fp32_bytes + 2 * rules.moment_bytes, rules.zero >= 1) / owners(shards, rules);
  return bytes;
}

double gathered_layers(const Model& model, const StageContent& content, const ShardSizes& shards,
                       const StateRules& rules, int experts) {
  const double weight =
      stored_weight_bytes(rules.precision, rules.gathers_low(), rules.transposed_copies);
  const auto dense = [&](const StageParameters& held) {
    return weight * held.gemm + bf16_bytes * (held.dense - held.gemm);
  };
  return largest_neighbours({model, content, shards, rules, experts}, dense, weight);
}

double whole_gradients(const Model& model, const StageContent& content, const ShardSizes& shards,
                       const StateRules& rules, int experts) {
  const double gradient = rules.gradient_bytes;
  const auto dense = [&](const StageParameters& held) { return gradient * held.dense; };
  return largest_neighbours({model, content, shards, rules, experts}, dense, gradient);
}

}  // namespace moesim::model
