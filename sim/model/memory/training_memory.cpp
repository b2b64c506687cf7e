#include "sim/model/memory/training_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/base/units.hpp"

namespace moesim::model {
namespace {

// Layers of one kind that are kept whole, as inputs only, and the groups of the latter.
double chunk_activations(const Model& model, const StageContent& content, const ShardSizes& shards,
                         const ActivationRules& rules) {
  ActivationRules whole = rules;
  const double input = bf16_bytes * real(model.hidden);
  const auto kept = [&](double dense, double moe) {
    double sum = 0;
    if (dense > 0) sum += dense * kept_bytes(model, LayerKind::dense, shards, whole);
    if (moe > 0) sum += moe * kept_bytes(model, LayerKind::moe, shards, whole);
    return sum;
  };
  double sum = 0;
  if (rules.recompute.full == FullRecompute::none) {
    sum = kept(content.dense_layers, content.moe_layers) +
          content.linear_layers * linear_more_bytes(model, shards, whole);
  } else if (rules.recompute.full == FullRecompute::uniform) {
    sum = std::ceil(content.layers() / rules.recompute.layers) * input;
  } else {
    const double again = std::min<double>(rules.recompute.layers, content.layers());
    const double dense = dense_among_first(model, content, again);
    whole.recompute = {};
    const double linear = content.linear_layers - linear_among_first(model, content, again);
    sum = again * input + kept(content.dense_layers - dense, content.moe_layers - (again - dense)) +
          linear * linear_more_bytes(model, shards, whole);
  }
  if (content.mtp_depths > 0) {
    const bool full = rules.recompute.full != FullRecompute::none;
    if (!full) whole.recompute = rules.recompute;
    const AttentionKind attention = attention_kind(model, model.layers);
    const double layer =
        full ? input : kept_bytes(model, last_kind(model), shards, whole, attention);
    sum += content.mtp_depths * (layer + mtp_kept_bytes(model, rules));
  }
  return sum;
}

StageContent all_of(const std::vector<HeldChunk>& chunks) {
  StageContent sum;
  for (const auto& [content, in_flight, waiting, losses] : chunks) {
    sum.dense_layers += content.dense_layers;
    sum.moe_layers += content.moe_layers;
    sum.linear_layers += content.linear_layers;
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

Bytes whole_bytes(double bytes) { return Bytes::rounded(bytes); }

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
    sum.linear_layers += linear_among_first(*query.model, chunk.content, again);
  }
  return sum;
}

// What recomputation holds of the layer at work: the largest, or a group of such layers inside a
// chunk.
double recomputing(const StageMemoryQuery& query, const StageContent& stage) {
  ActivationRules rules = query.activations;
  rules.load = rules.layer_load;
  const StageContent again = recomputed_layers(query, stage);
  const Model& model = *query.model;
  const bool linear_depth = attention_kind(model, model.layers) == AttentionKind::linear;
  const bool has_linear = again.linear_layers > 0 || (again.mtp_depths > 0 && linear_depth);
  const bool has_softmax =
      again.layers() > again.linear_layers || (again.mtp_depths > 0 && !linear_depth);
  const auto largest = [&](LayerKind kind) {
    const auto of = [&](AttentionKind attention) {
      return recomputed_bytes(model, kind, query.shards, rules, attention);
    };
    return std::max(has_softmax ? of(AttentionKind::softmax) : 0,
                    has_linear ? of(AttentionKind::linear) : 0);
  };
  double most = 0;
  if (again.dense_layers > 0 || (again.mtp_depths > 0 && last_kind(model) == LayerKind::dense)) {
    most = largest(LayerKind::dense);
  }
  if (moe_layers_with_depths(model, again) > 0) most = std::max(most, largest(LayerKind::moe));
  if (rules.recompute.full != FullRecompute::uniform) return most;
  double longest = 1;
  for (const HeldChunk& chunk : query.chunks) longest = std::max(longest, chunk.content.layers());
  return most * std::min<double>(rules.recompute.layers, longest);
}

// What context ranks hold of each other's keys and values, and of their gradients, in the backward
// pass of a layer (Transformer Engine, context_parallel.py: full-length k_ag, v_ag, dk and dv
// behind an all-gather, two buffers of each in a ring). Linear attention exchanges heads.
double context_buffers(const StageMemoryQuery& query, const StageContent& stage) {
  const int ranks = query.shards.context;
  const Model& model = *query.model;
  const bool softmax_depth = attention_kind(model, model.layers) == AttentionKind::softmax;
  const double with_softmax =
      stage.layers() - stage.linear_layers + (softmax_depth ? stage.mtp_depths : 0);
  if (ranks == 1 || with_softmax <= 0 || query.context == ContextMethod::all_to_all) return 0;
  const std::int64_t heads = model.latent ? model.heads : spread_kv_heads(model, query.shards);
  const double width = real(heads * (model.query_key_dim() + model.value_dim()));
  const int pieces = query.context == ContextMethod::all_gather ? ranks : 2;
  return 2 * bf16_bytes * pieces * query.tokens * width / query.shards.tensor;
}

// The buffers of dispatch and combine.
double expert_buffers(const StageMemoryQuery& query, const StageContent& stage) {
  if (moe_layers_with_depths(*query.model, stage) == 0) return 0;
  if (query.gathered_buffers > 0) return query.gathered_buffers;
  const double there_and_back = query.activations.dispatched_element + bf16_bytes;
  return std::max(query.reserved_buffers,
                  there_and_back * query.activations.choices * query.activations.layer_load *
                      (query.tokens / query.shards.tensor) * real(query.model->hidden));
}

// Bytes per token of the rank, of all micro-batches in flight.
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
  const bool is_moe_last = last_kind(*query.model) == LayerKind::moe;
  double dense_layers = 0;
  double moe_layers = 0;
  for (const auto& [content, in_flight, waiting, losses] : query.chunks) {
    const double depths = content.mtp_depths;
    dense_layers += in_flight * (content.dense_layers + (is_moe_last ? 0 : depths));
    moe_layers += in_flight * (content.moe_layers + (is_moe_last ? depths : 0));
  }
  sum.all = dense_layers * dense + moe_layers * moe;
  // The two layers that have most to copy.
  const double larger = dense > moe ? dense_layers : moe_layers;
  const double of_larger = std::min(2.0, larger);
  const double of_smaller = std::min(2.0 - of_larger, dense_layers + moe_layers - larger);
  sum.moving = of_larger * std::max(dense, moe) + of_smaller * std::min(dense, moe);
  return sum;
}

// Per token and word, of all passes whose logits are held.
double logit_bytes(const StageMemoryQuery& query) {
  double sum = 0;
  for (const HeldChunk& chunk : query.chunks) {
    sum += chunk.losses * fp32_bytes * ((chunk.content.head ? 1 : 0) + chunk.content.mtp_losses);
    if (chunk.content.head) sum += bf16_bytes;
  }
  return sum;
}

}  // namespace

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
  const double not_reduced = query.states.zero >= 2 ? whole_gradients(model, stage, query.shards,
                                                                      query.states, query.experts)
                                                    : 0;
  const double per_rank = query.tokens / query.shards.tensor;
  const double tokens = query.activations.sequence_parallel ? per_rank : query.tokens;
  double kept = 0;
  bool holds_recomputed = false;  // the layer at work is among what waits
  ActivationRules whole = query.activations;
  whole.recompute = {};
  for (const auto& [content, in_flight, waiting, losses] : query.chunks) {
    if (in_flight == 0) continue;
    holds_recomputed |= waiting > 0;
    kept +=
        (in_flight - waiting) * chunk_activations(model, content, query.shards, query.activations) +
        waiting * chunk_activations(model, content, query.shards, whole);
  }
  const Offloaded offloaded = offloaded_of(query);
  kept += offloaded.moving;
  StageMemory memory;
  memory.weights = whole_bytes(states.weights + gathered);
  memory.gradients = whole_bytes(states.gradients + not_reduced);
  memory.optimizer = whole_bytes(state_bytes(stepped, query.shards, query.states).optimizer);
  memory.activations = whole_bytes(tokens * kept);
  memory.offloaded = whole_bytes(tokens * offloaded.all);
  memory.recomputed = whole_bytes(holds_recomputed ? 0 : tokens * recomputing(query, stage));
  memory.logits = whole_bytes(per_rank * logit_bytes(query) * real(model.vocabulary));
  memory.exchange_buffers =
      whole_bytes(expert_buffers(query, stage) + context_buffers(query, stage));
  return memory;
}

std::vector<double> layer_shares(const StageMemoryQuery& query, const StageContent& content) {
  if (query.activations.recompute.full != FullRecompute::none) return {};
  const Model& model = *query.model;
  const auto kept = [&](const StageContent& part) {
    return chunk_activations(model, part, query.shards, query.activations);
  };
  StageContent depth;
  depth.mtp_depths = 1;
  std::vector<double> shares;
  for (int layer = 0; layer < static_cast<int>(content.layers()); ++layer) {
    shares.push_back(kept(layers_of(model, content.first_layer + layer, 1)));
  }
  shares.resize(shares.size() + static_cast<std::size_t>(content.mtp_depths),
                content.mtp_depths > 0 ? kept(depth) : 0);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace moesim::model
