#include "sim/model/training_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"

namespace moesim::model {
namespace {

constexpr double bf16 = 2;
constexpr double fp32 = 4;

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

double real(std::int64_t count) { return static_cast<double>(count); }

// Key-value heads of all tensor ranks together: a rank has at least one.
std::int64_t spread_kv_heads(const Model& model, const ShardSizes& shards) {
  return std::max<std::int64_t>(model.kv_heads, shards.tensor);
}

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

Weights layer_weights(const Model& model, LayerKind kind, const ShardSizes& shards) {
  Weights weights = attention_weights(model, shards);
  weights.whole_rest += real(model.hidden);
  if (kind == LayerKind::dense) {
    weights.split += real(model.ffn_parameters(model.ffn));
  } else {
    weights.split += real(model.ffn_parameters(model.moe->shared_ffn));
    // Copies of an expert share its score.
    weights.whole_rest += real(model.hidden * model.moe->experts);
  }
  return weights;
}

LayerKind last_kind(const Model& model) {
  return model.is_moe_layer(model.layers - 1) ? LayerKind::moe : LayerKind::dense;
}

// A prediction depth: a layer like the last one, the projection, norms of both inputs and its own.
Weights mtp_weights(const Model& model, const ShardSizes& shards) {
  Weights weights = layer_weights(model, last_kind(model), shards);
  weights.split += 2 * real(model.hidden * model.hidden);
  weights.whole_rest += 3 * real(model.hidden);
  return weights;
}

double moe_layers_with_depths(const Model& model, const StageContent& content) {
  return content.moe_layers + (last_kind(model) == LayerKind::moe ? content.mtp_depths : 0);
}

double expert_weights(const Model& model, const ShardSizes& shards, int experts) {
  return real(experts) * real(model.expert_parameters()) / (shards.expert * shards.expert_tensor);
}

double shared(double bytes, double count, int replicas, bool shards) {
  return shards ? bytes * count / replicas : bytes * count;
}

// One tensor kept for the backward pass: elements per token, what they are read by, and the modules
// whose recomputation drops it.
struct Kept {
  double elements = 0;
  bool gemm_input = false;
  bool read_in_bf16 = true;  // by something else than a GEMM
  unsigned dropped_by = 0;
  unsigned offloaded_by = 0;
  bool split = true;  // over tensor ranks also without sequence parallelism
  double element = bf16;
};

constexpr unsigned mask(RecomputeModule module) { return static_cast<unsigned>(module); }
constexpr unsigned mask(OffloadModule module) { return static_cast<unsigned>(module); }

class KeptList {
 public:
  explicit KeptList(const ActivationRules& rules) : rules_(rules) { list_.reserve(most_tensors); }

  void add(Kept kept) { list_.push_back(kept); }
  void other(double bytes, unsigned dropped_by) {
    list_.push_back({.elements = bytes, .dropped_by = dropped_by, .element = 1});
  }
  // Input and output of a norm in front of GEMMs.
  void norm(double width, bool output_read_in_bf16, OffloadModule input, unsigned output = 0) {
    add({.elements = width, .offloaded_by = mask(input), .split = false});
    add({.elements = width,
         .gemm_input = true,
         .read_in_bf16 = output_read_in_bf16,
         .dropped_by = mask(RecomputeModule::layernorm),
         .offloaded_by = output,
         .split = false});
  }

  // Of those that are not recomputed, what stays on the GPU, or what is offloaded.
  double bytes(const ActivationRules& rules, double parts, bool offloaded) const {
    double sum = 0;
    for (const Kept& kept : list_) {
      if ((kept.dropped_by & rules.recompute.modules) != 0) continue;
      if (((kept.offloaded_by & rules.offload.modules) != 0) != offloaded) continue;
      sum += size(kept) * (kept.split ? 1 / parts : 1);
    }
    return sum;
  }

 private:
  double size(const Kept& kept) const {
    if (!kept.gemm_input || rules_.precision == Precision::bf16) {
      return kept.elements * kept.element;
    }
    return kept.elements * (element_bytes(rules_.precision) + (kept.read_in_bf16 ? bf16 : 0));
  }

  static constexpr std::size_t most_tensors = 32;  // of a layer; more would fit too
  const ActivationRules& rules_;
  std::vector<Kept> list_;
};

void keep_latent_inputs(const Model& model, KeptList& list) {
  const LatentAttention& latent = *model.latent;
  for (const std::int64_t width : {latent.query_rank, latent.kv_rank}) {
    if (width == 0) continue;
    list.add({.elements = real(width)});
    list.add({.elements = real(width), .gemm_input = true, .read_in_bf16 = false});
  }
  list.add({.elements = real(latent.rope_dim)});
}

void keep_attention(const Model& model, const ShardSizes& shards, const ActivationRules& rules,
                    KeptList& list) {
  list.norm(real(model.hidden), false, OffloadModule::attn_norm, mask(OffloadModule::qkv_linear));
  const double heads = real(model.heads);
  const double keys = real(model.latent ? model.heads : spread_kv_heads(model, shards));
  const double queries_keys_values =
      heads * real(model.query_key_dim()) + keys * real(model.query_key_dim() + model.value_dim());
  unsigned dropped_by = 0;
  if (model.latent) {
    keep_latent_inputs(model, list);
    dropped_by = mask(RecomputeModule::mla_up_proj);
  }
  list.add({.elements = queries_keys_values,
            .dropped_by = dropped_by,
            .offloaded_by = mask(OffloadModule::core_attn)});
  list.add({.elements = heads * real(model.value_dim()),
            .gemm_input = true,
            .offloaded_by = mask(OffloadModule::attn_proj)});
  // Log-sum-exps of flash attention; else scores, their softmax and the mask of their dropout.
  list.other(rules.flash_attention ? fp32 * heads : 5 * heads * rules.length,
             mask(RecomputeModule::core_attn));
}

// The inner tensors of `width` columns of FFN per token: both halves before the activation, its
// output.
void keep_inner(const Model& model, double width, const Kept& halves, unsigned output_too,
                KeptList& list) {
  Kept before = halves;
  before.elements = (model.gated ? 2 : 1) * width;
  list.add(before);
  list.add({.elements = width,
            .gemm_input = true,
            .read_in_bf16 = false,
            .dropped_by = halves.dropped_by | output_too});
}

void keep_moe(const Model& model, const ShardSizes& shards, const ActivationRules& rules,
              KeptList& list) {
  list.norm(real(model.hidden), true, OffloadModule::mlp_norm);
  const unsigned moe = mask(RecomputeModule::moe);
  const double rows = rules.choices * rules.load;
  list.add({.elements = rows * real(model.hidden) * shards.expert_tensor,
            .gemm_input = true,
            .read_in_bf16 = false,
            .dropped_by = moe,
            .offloaded_by = mask(OffloadModule::expert_fc1)});
  keep_inner(model, rows * real(model.moe->expert_ffn),
             {.dropped_by = moe, .offloaded_by = mask(OffloadModule::moe_act)},
             mask(RecomputeModule::moe_act), list);
  // Not fused with a gate, the activation is kept for the gradient of the routes' weights, too
  // (Megatron-Core, TEGroupedMLP.forward).
  if (!model.gated) {
    list.add({.elements = rows * real(model.moe->expert_ffn),
              .dropped_by = moe | mask(RecomputeModule::moe_act),
              .offloaded_by = mask(OffloadModule::moe_act)});
  }
  // The gradient of clamps needs what they read, that of the activation what they wrote
  // (Megatron-Core, weighted_bias_quick_geglu_impl).
  if (model.moe->clamped && !rules.fused_experts) {
    list.add({.elements = (model.gated ? 2 : 1) * rows * real(model.moe->expert_ffn),
              .dropped_by = moe | mask(RecomputeModule::moe_act),
              .offloaded_by = mask(OffloadModule::moe_act)});
  }
  keep_inner(model, real(model.moe->shared_ffn),
             {.dropped_by = moe | mask(RecomputeModule::shared_experts)}, 0, list);
  list.other(8 * real(model.moe->experts), moe);
}

KeptList kept_tensors(const Model& model, LayerKind kind, const ShardSizes& shards,
                      const ActivationRules& rules) {
  KeptList list(rules);
  keep_attention(model, shards, rules, list);
  if (kind == LayerKind::moe) {
    keep_moe(model, shards, rules, list);
  } else {
    list.norm(real(model.hidden), false, OffloadModule::mlp_norm);
    keep_inner(model, real(model.ffn), {.dropped_by = mask(RecomputeModule::mlp)}, 0, list);
  }
  if (rules.dropout) {
    for (int block = 0; block < 2; ++block) {
      list.add({.elements = real(model.hidden), .split = false, .element = 1});
    }
  }
  return list;
}

double unsplit_parts(const ShardSizes& shards, const ActivationRules& rules) {
  return rules.sequence_parallel ? 1 : shards.tensor;
}

// Of a prediction depth beside its layer: inputs of two norms, and of the projection.
double mtp_extra_bytes(const Model& model, const ActivationRules& rules) {
  const double hidden = real(model.hidden);
  return bf16 * 2 * hidden + element_bytes(rules.precision) * 2 * hidden;
}

// Layers of one kind that are kept whole, as inputs only, and the groups of the latter.
double chunk_activations(const Model& model, const StageContent& content, const ShardSizes& shards,
                         const ActivationRules& rules) {
  ActivationRules whole = rules;
  const double input = bf16 * real(model.hidden);
  const auto kept = [&](double dense, double moe) {
    double sum = 0;
    if (dense > 0) sum += dense * kept_bytes(model, LayerKind::dense, shards, whole);
    if (moe > 0) sum += moe * kept_bytes(model, LayerKind::moe, shards, whole);
    return sum;
  };
  double sum = 0;
  if (rules.recompute.full == FullRecompute::none) {
    sum = kept(content.dense_layers, content.moe_layers);
  } else if (rules.recompute.full == FullRecompute::uniform) {
    sum = std::ceil(content.layers() / rules.recompute.layers) * input;
  } else {
    const double again = std::min<double>(rules.recompute.layers, content.layers());
    const double dense = dense_among_first(model, content, again);
    whole.recompute = {};
    sum = again * input + kept(content.dense_layers - dense, content.moe_layers - (again - dense));
  }
  if (content.mtp_depths > 0) {
    const bool full = rules.recompute.full != FullRecompute::none;
    if (!full) whole.recompute = rules.recompute;
    const double layer = full ? input : kept_bytes(model, last_kind(model), shards, whole);
    sum += content.mtp_depths * (layer + mtp_extra_bytes(model, rules));
  }
  return sum;
}

StageContent all_of(const std::vector<HeldChunk>& chunks) {
  StageContent sum;
  for (const auto& [content, in_flight, waiting] : chunks) {
    sum.dense_layers += content.dense_layers;
    sum.moe_layers += content.moe_layers;
    sum.mtp_depths += content.mtp_depths;
    sum.embedding |= content.embedding;
    sum.head |= content.head;
    sum.mtp_losses += content.mtp_losses;
  }
  return sum;
}

void check(const StageMemoryQuery& query) {
  const ShardSizes& shards = query.shards;
  const int least = std::min({shards.tensor, shards.context, shards.expert, shards.expert_tensor,
                              shards.data, shards.expert_data});
  const StateRules& states = query.states;
  if (query.model == nullptr || least < 1 || query.tokens < 0 || states.zero < 0 ||
      states.zero > 3 || (states.moment_bytes != 2 && states.moment_bytes != 4)) {
    throw UsageError(fmt::format(
        "memory of a stage: groups from {}, {} tokens, ZeRO {}, moments of {} bytes: out of range",
        least, query.tokens, states.zero, states.moment_bytes));
  }
  if (query.model->encoder_layers > 0) {
    throw UsageError(fmt::format("memory of a stage: {} has an encoder; only decoders are known",
                                 query.model->name));
  }
  const bool experts = moe_layers_with_depths(*query.model, all_of(query.chunks)) > 0;
  if (experts && (query.experts < 1 || query.experts % shards.expert != 0)) {
    throw UsageError(fmt::format("{} experts do not divide by {} expert-parallel ranks",
                                 query.experts, shards.expert));
  }
}

StageContent layers_of_kinds(double dense, double moe) {
  StageContent content;
  content.dense_layers = dense;
  content.moe_layers = moe;
  return content;
}

// One layer of a stage, if it has any: of that kind, or else of the other.
StageContent one_layer(const StageContent& stage, bool is_moe) {
  const bool has_moe = stage.moe_layers > 0;
  const bool has_dense = stage.dense_layers > 0;
  const bool takes_moe = has_moe && (is_moe || !has_dense);
  return layers_of_kinds(has_dense && !takes_moe ? 1 : 0, takes_moe ? 1 : 0);
}

// Any two that follow each other in a stage, or one alone: of the embedding, layers, prediction
// depths, which read the embedding first, and the head.
std::vector<StageContent> neighbours_of(const Model& model, const StageContent& stage) {
  std::vector<StageContent> found = {one_layer(stage, false), one_layer(stage, true)};
  for (int layer = 1; layer < model.layers; ++layer) {
    const int moe = (model.is_moe_layer(layer - 1) ? 1 : 0) + (model.is_moe_layer(layer) ? 1 : 0);
    if (stage.moe_layers < moe || stage.dense_layers < 2 - moe) continue;
    found.push_back(layers_of_kinds(2 - moe, moe));
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

Bytes whole_bytes(double bytes) { return Bytes(std::llround(bytes)); }

// The layers of a stage of which something is recomputed: under FullRecompute::block the first ones
// of each chunk, and prediction depths.
StageContent recomputed_layers(const StageMemoryQuery& query, const StageContent& stage) {
  const Recompute& recompute = query.activations.recompute;
  if (recompute.full != FullRecompute::block) return stage;
  StageContent sum;
  sum.mtp_depths = stage.mtp_depths;
  for (const HeldChunk& chunk : query.chunks) {
    const double again = std::min<double>(recompute.layers, chunk.content.layers());
    const double dense = dense_among_first(*query.model, chunk.content, again);
    sum.dense_layers += dense;
    sum.moe_layers += again - dense;
  }
  return sum;
}

// Of the layer at work: the largest, or a group of such layers inside a chunk.
double recomputing(const StageMemoryQuery& query, const StageContent& stage) {
  ActivationRules rules = query.activations;
  rules.load = rules.layer_load;
  const StageContent again = recomputed_layers(query, stage);
  double most = 0;
  if (again.dense_layers > 0 ||
      (again.mtp_depths > 0 && last_kind(*query.model) == LayerKind::dense)) {
    most = recomputed_bytes(*query.model, LayerKind::dense, query.shards, rules);
  }
  if (moe_layers_with_depths(*query.model, again) > 0) {
    most = std::max(most, recomputed_bytes(*query.model, LayerKind::moe, query.shards, rules));
  }
  if (rules.recompute.full != FullRecompute::uniform) return most;
  double longest = 1;
  for (const HeldChunk& chunk : query.chunks) longest = std::max(longest, chunk.content.layers());
  return most * std::min<double>(rules.recompute.layers, longest);
}

// What context ranks hold of each other's keys and values, and of their gradients, in the backward
// pass of a layer (Transformer Engine, context_parallel.py: full-length k_ag, v_ag, dk and dv
// behind an all-gather, two buffers of each in a ring).
double context_buffers(const StageMemoryQuery& query, const StageContent& stage) {
  const int ranks = query.shards.context;
  const bool has_attention = stage.layers() + stage.mtp_depths > 0;
  if (ranks == 1 || !has_attention || query.context == ContextMethod::all_to_all) return 0;
  const Model& model = *query.model;
  const std::int64_t heads = model.latent ? model.heads : spread_kv_heads(model, query.shards);
  const double width = real(heads * (model.query_key_dim() + model.value_dim()));
  const int pieces = query.context == ContextMethod::all_gather ? ranks : 2;
  return 2 * bf16 * pieces * query.tokens * width / query.shards.tensor;
}

// Of dispatch and combine.
double expert_buffers(const StageMemoryQuery& query, const StageContent& stage) {
  if (moe_layers_with_depths(*query.model, stage) == 0) return 0;
  const double there_and_back = query.activations.dispatched_element + bf16;
  return there_and_back * query.activations.choices * query.activations.layer_load *
         (query.tokens / query.shards.tensor) * real(query.model->hidden);
}

// Per token of the rank, of all micro-batches in flight.
struct Offloaded {
  double all = 0;
  double moving = 0;  // on the GPU: of a layer on its way out and one on its way in
};

Offloaded offloaded_of(const StageMemoryQuery& query) {
  Offloaded sum;
  if (query.activations.offload.modules == 0) return sum;
  const auto of = [&](LayerKind kind) {
    return offloaded_bytes(*query.model, kind, query.shards, query.activations);
  };
  const double dense = of(LayerKind::dense);
  const double moe = query.model->moe ? of(LayerKind::moe) : 0;
  double layers = 0;
  for (const auto& [content, in_flight, waiting] : query.chunks) {
    const double depths = content.mtp_depths;
    const double last = last_kind(*query.model) == LayerKind::moe ? moe : dense;
    sum.all +=
        in_flight * (content.dense_layers * dense + content.moe_layers * moe + depths * last);
    layers += in_flight * (content.layers() + depths);
  }
  if (layers > 0) sum.moving = std::min(2.0, layers) * sum.all / layers;
  return sum;
}

}  // namespace

StageContent layers_of(const Model& model, int first, int count) {
  StageContent content;
  content.first_layer = first;
  for (int layer = first; layer < first + count; ++layer) {
    (model.is_moe_layer(layer) ? content.moe_layers : content.dense_layers) += 1;
  }
  return content;
}

double dense_among_first(const Model& model, const StageContent& content, double count) {
  const double most = std::min(count, content.layers());
  if (content.first_layer < 0) return std::min(most, content.dense_layers);
  return layers_of(model, content.first_layer, static_cast<int>(most)).dense_layers;
}

StageParameters stage_parameters(const Model& model, const StageContent& content,
                                 const ShardSizes& shards, int experts) {
  Weights sum;
  if (content.dense_layers > 0) {
    sum.add(layer_weights(model, LayerKind::dense, shards), content.dense_layers);
  }
  if (content.moe_layers > 0) {
    sum.add(layer_weights(model, LayerKind::moe, shards), content.moe_layers);
  }
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
      stored_weight_bytes(rules.precision, rules.low_precision_gather, rules.transposed_copies);
  const double dense_weights =
      gemm_weight * parameters.gemm + bf16 * (parameters.dense - parameters.gemm);
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
  bytes.optimizer = both(fp32 + 2 * rules.moment_bytes, rules.zero >= 1) / owners(shards, rules);
  return bytes;
}

double gathered_layers(const Model& model, const StageContent& content, const ShardSizes& shards,
                       const StateRules& rules, int experts) {
  const double weight =
      stored_weight_bytes(rules.precision, rules.low_precision_gather, rules.transposed_copies);
  // Weights without replicas in their instance lie whole where they are.
  const bool shares_dense = sharing_ranks(shards.dense_replicas(), rules) > 1;
  const bool shares_experts = sharing_ranks(shards.expert_data, rules) > 1;
  double most = 0;
  for (const StageContent& neighbours : neighbours_of(model, content)) {
    const StageParameters held = stage_parameters(model, neighbours, shards, experts);
    const double dense = weight * held.gemm + bf16 * (held.dense - held.gemm);
    most = std::max(most, (shares_dense ? dense : 0) + (shares_experts ? weight * held.expert : 0));
  }
  return most;
}

double kept_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                  const ActivationRules& rules) {
  if (rules.recompute.full != FullRecompute::none) return bf16 * real(model.hidden);
  return kept_tensors(model, kind, shards, rules).bytes(rules, unsplit_parts(shards, rules), false);
}

double offloaded_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                       const ActivationRules& rules) {
  if (rules.offload.modules == 0 || rules.recompute.full != FullRecompute::none) return 0;
  return kept_tensors(model, kind, shards, rules).bytes(rules, unsplit_parts(shards, rules), true);
}

double recomputed_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                        const ActivationRules& rules) {
  ActivationRules kept = rules;
  kept.offload = {};
  ActivationRules all = kept;
  all.recompute = {};
  return kept_bytes(model, kind, shards, all) - kept_bytes(model, kind, shards, kept);
}

StageMemory stage_memory(const StageMemoryQuery& query) {
  check(query);
  const Model& model = *query.model;
  const StageContent stage = all_of(query.chunks);
  const StageParameters parameters = stage_parameters(model, stage, query.shards, query.experts);
  const StateBytes states = state_bytes(parameters, query.shards, query.states);
  const StageParameters stepped =
      stage_parameters(model, stage, query.shards, query.experts - query.copies);
  const double gathered = query.states.zero == 3 ? gathered_layers(model, stage, query.shards,
                                                                   query.states, query.experts)
                                                 : 0;
  const double per_rank = query.tokens / query.shards.tensor;
  const double tokens = query.activations.sequence_parallel ? per_rank : query.tokens;
  double kept = 0;
  ActivationRules whole = query.activations;
  whole.recompute = {};
  for (const auto& [content, in_flight, waiting] : query.chunks) {
    if (in_flight == 0) continue;
    kept +=
        (in_flight - waiting) * chunk_activations(model, content, query.shards, query.activations) +
        waiting * chunk_activations(model, content, query.shards, whole);
  }
  const Offloaded offloaded = offloaded_of(query);
  kept += offloaded.moving;
  StageMemory memory;
  memory.weights = whole_bytes(states.weights + gathered);
  memory.gradients = whole_bytes(states.gradients);
  memory.optimizer = whole_bytes(state_bytes(stepped, query.shards, query.states).optimizer);
  memory.activations = whole_bytes(tokens * kept);
  memory.offloaded = whole_bytes(tokens * offloaded.all);
  memory.recomputed = whole_bytes(tokens * recomputing(query, stage));
  const double losses = (stage.head ? 6 : 0) + fp32 * stage.mtp_losses;
  memory.logits = whole_bytes(per_rank * losses * real(model.vocabulary));
  memory.exchange_buffers =
      whole_bytes(expert_buffers(query, stage) + context_buffers(query, stage));
  return memory;
}

}  // namespace moesim::model
