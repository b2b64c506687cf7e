#include "sim/model/memory/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/expert_split.hpp"

namespace moesim::model {
namespace {

constexpr std::int64_t bf16 = 2;
constexpr std::int64_t fp32 = 4;
constexpr std::int64_t adam_bytes = 12;  // of a parameter: fp32 weight and two moments
// Assumed: CUDA context and modules (about 0.5 GiB), NCCL channels and cuBLAS workspaces.
constexpr std::int64_t reserved_by_libraries = std::int64_t{1} << 30;

std::int64_t shared_out(std::int64_t bytes, std::int64_t replicas) {
  return (bytes + replicas - 1) / replicas;
}

bool has_experts(const MemoryQuery& query) {
  return query.experts > 0 && query.model->moe.has_value();
}

void check(const MemoryQuery& query) {
  if (query.gpus < 1 || query.tokens < 0 || query.zero < 0 || query.zero > 3) {
    throw UsageError(fmt::format("memory of {} GPUs, {} tokens, ZeRO {}: out of range", query.gpus,
                                 query.tokens, query.zero));
  }
  if (!has_experts(query)) return;
  check_experts_divide(query.experts, query.expert_parallel, query.gpus);
  if (query.gpus % query.expert_parallel != 0) {
    throw UsageError(fmt::format("memory of {} GPUs in expert-parallel groups of {}: out of range",
                                 query.gpus, query.expert_parallel));
  }
}

std::int64_t padded_rows(const MemoryQuery& query) { return query.experts * query.capacity; }

// The rows that a GPU's experts compute in a layer: on average over layers, or the most.
std::int64_t expert_rows(const MemoryQuery& query) {
  return query.rows ? query.rows->most : padded_rows(query);
}
std::int64_t mean_expert_rows(const MemoryQuery& query) {
  return query.rows ? query.rows->mean : padded_rows(query);
}

// What one GPU keeps per MoE layer: the router's probabilities and the routes; the received rows as
// the experts' input, the experts' inner activations, and the returned rows, from which the
// backward pass of the combine takes the gradient of the weights. E C rows leave a GPU and, all
// sources sending equal blocks, P (E/P) C arrive: `rows`. Rectified rows are one more expert call.
std::int64_t moe_ffn_bytes(const MemoryQuery& query, std::int64_t rows) {
  const Model& model = *query.model;
  const std::int64_t norm = 2 * bf16 * model.hidden;
  const std::int64_t routes = fp32 * query.experts + 4 * fp32 * query.choices;
  const std::int64_t inner = ffn_activation_bytes(model, model.moe->expert_ffn);
  const std::int64_t row = 2 * bf16 * model.hidden + inner;
  const std::int64_t shared = ffn_activation_bytes(model, model.moe->shared_ffn);
  return query.tokens * (norm + routes + shared) + (rows + query.ir_rows) * row;
}

// Combine weights and dispatch mask, both cast to bf16 for the two einsums; with soft routing its
// two weights.
std::int64_t einsum_mask_bytes(const MemoryQuery& query) {
  const std::int64_t slots = query.einsum ? padded_rows(query) : query.mixed_slots;
  return 2 * bf16 * query.tokens * slots;
}

// The most that one layer keeps: all of it for one layer at a time under checkpointing.
std::int64_t layer_bytes(const MemoryQuery& query, int layer, std::int64_t rows) {
  const Model& model = *query.model;
  const std::int64_t attention =
      query.tokens * model.attention_blocks(layer) * attention_activation_bytes(model);
  if (has_experts(query) && model.is_moe_layer(layer))
    return attention + moe_ffn_bytes(query, rows);
  const std::int64_t ffn = 2 * bf16 * model.hidden + ffn_activation_bytes(model, model.ffn);
  return attention + query.tokens * ffn;
}

// Input of the final norm, of the head, and fp32 logits (Korthikanti et al. 2022, section 4.3).
std::int64_t head_bytes(const MemoryQuery& query) {
  const Model& model = *query.model;
  return query.tokens * (2 * bf16 * model.hidden + fp32 * model.vocabulary);
}

void add_training_activations(const MemoryQuery& query, MemoryFootprint& memory) {
  const Model& model = *query.model;
  const std::int64_t masks = has_experts(query) ? einsum_mask_bytes(query) : 0;
  std::int64_t sum = 0;
  std::int64_t largest = 0;
  for (int layer = 0; layer < model.layers; ++layer) {
    largest = std::max(largest, layer_bytes(query, layer, expert_rows(query)));
    sum += query.checkpointing ? bf16 * query.tokens * model.hidden
                               : layer_bytes(query, layer, mean_expert_rows(query));
  }
  if (query.checkpointing) sum += largest;  // the layer being recomputed
  memory.activations = Bytes(sum + head_bytes(query));
  const std::int64_t mask_layers =
      query.checkpointing ? std::min(model.moe_layers(), 1) : model.moe_layers();
  memory.einsum_masks = Bytes(masks * mask_layers);
}

// A forward pass keeps the residual stream and the larger of one attention block's and one FFN's
// tensors, or the logits at its end.
void add_forward_activations(const MemoryQuery& query, MemoryFootprint& memory) {
  const Model& model = *query.model;
  const std::int64_t residual = bf16 * query.tokens * model.hidden;
  std::int64_t working = query.tokens * attention_activation_bytes(model);
  if (!has_experts(query) || model.dense_layers() > 0) {
    working = std::max(
        working, query.tokens * (bf16 * model.hidden + ffn_activation_bytes(model, model.ffn)));
  }
  if (has_experts(query)) working = std::max(working, moe_ffn_bytes(query, expert_rows(query)));
  working = std::max(working, bf16 * query.tokens * model.vocabulary);
  memory.activations = Bytes(residual + working);
  memory.einsum_masks = Bytes(has_experts(query) ? einsum_mask_bytes(query) : 0);
}

// Keys and values of all tokens, in layers with a window of the last ones of each sequence. Nothing
// attends to an encoder's layers later; a decoder's layers attend to its output, too.
std::int64_t kept_keys_and_values(const MemoryQuery& query) {
  const Model& model = *query.model;
  std::int64_t rows = 0;  // over layers
  for (int layer = 0; layer < model.layers; ++layer) {
    if (!model.is_causal(layer)) continue;
    std::int64_t kept = query.tokens;
    const std::int64_t length = query.sequence_length > 0 ? query.sequence_length : query.tokens;
    if (model.has_window(layer) && model.window->tokens < length) {
      kept = query.tokens * model.window->tokens / length;
    }
    rows += model.attention_blocks(layer) * kept;
  }
  return rows * kv_cache_bytes(model);
}

// The model counts a gate of E columns.
std::int64_t dense_parameters(const MemoryQuery& query) {
  const std::int64_t parameters = query.model->dense_parameters(query.experts);
  if (!has_experts(query) || !query.gate_outputs) return parameters;
  return parameters +
         query.model->moe_layers() * query.model->hidden * (*query.gate_outputs - query.experts);
}

// Gradients of a layer's widest tensors while its backward pass runs, and under ZeRO 3 the
// gathered weights of the layer at work and of the next one: of those that several GPUs share.
std::int64_t training_workspace(const MemoryQuery& query) {
  const Model& model = *query.model;
  const std::int64_t branches = model.gated ? 2 : 1;
  std::int64_t inner = query.tokens * model.ffn;
  const bool gathers = query.zero == 3 && query.gpus > 1;
  std::int64_t gathered = gathers ? model.attention_parameters() : 0;
  std::int64_t ffn_weights = gathers ? model.ffn_parameters(model.ffn) : 0;
  if (has_experts(query)) {
    if (model.dense_layers() == 0) inner = ffn_weights = 0;
    inner = std::max(inner, expert_rows(query) * model.moe->expert_ffn);
    const std::int64_t local = query.experts / query.expert_parallel;
    const bool has_replicas = query.gpus > query.expert_parallel;
    if (has_replicas && query.expert_zero.value_or(query.zero) == 3) {
      ffn_weights = std::max(ffn_weights, local * model.expert_parameters());
    }
  }
  gathered += ffn_weights;
  const std::int64_t held = std::min(model.layers, 2);
  return bf16 * (query.tokens * model.hidden + branches * inner + held * gathered);
}

}  // namespace

StateMemory state_memory(std::int64_t parameters, std::int64_t replicas, int zero) {
  StateMemory memory;
  memory.parameters = Bytes(shared_out(bf16 * parameters, zero >= 3 ? replicas : 1));
  memory.gradients = Bytes(shared_out(bf16 * parameters, zero >= 2 ? replicas : 1));
  memory.optimizer = Bytes(shared_out(adam_bytes * parameters, zero >= 1 ? replicas : 1));
  return memory;
}

std::int64_t attention_activation_bytes(const Model& model) {
  // Input of the norm, input of the projections, queries, keys and values, and the output with its
  // log-sum-exp; under latent attention also what passes the bottlenecks.
  const std::int64_t queries = model.heads * model.query_key_dim();
  const std::int64_t key_heads = model.latent ? model.heads : model.kv_heads;
  const std::int64_t keys_values = key_heads * (model.query_key_dim() + model.value_dim());
  const std::int64_t bottlenecks =
      model.latent ? model.latent->query_rank + model.latent->kv_rank + model.latent->rope_dim : 0;
  const std::int64_t output = model.heads * model.value_dim();
  return bf16 * (2 * model.hidden + queries + keys_values + bottlenecks + output) +
         fp32 * model.heads;
}

std::int64_t ffn_activation_bytes(const Model& model, std::int64_t inner) {
  // Gate, up and their product, or the inputs of activation and second matrix.
  return bf16 * (model.gated ? 3 : 2) * inner;
}

std::int64_t kv_cache_bytes(const Model& model) {
  if (model.latent) return bf16 * (model.latent->kv_rank + model.latent->rope_dim);
  return bf16 * 2 * model.kv_heads * model.head_dim;
}

MemoryFootprint memory_footprint(const MemoryQuery& query) {
  check(query);
  const Model& model = *query.model;
  const bool experts = has_experts(query);
  const int zero = query.train ? query.zero : 0;
  const StateMemory dense = state_memory(dense_parameters(query), query.gpus, zero);
  StateMemory expert;
  if (experts) {
    const std::int64_t local = std::int64_t{model.moe_layers()} *
                               (query.experts / query.expert_parallel) * model.expert_parameters();
    expert = state_memory(local, query.gpus / query.expert_parallel,
                          query.train ? query.expert_zero.value_or(zero) : 0);
  }
  MemoryFootprint memory;
  memory.parameters = dense.parameters + expert.parameters;
  if (query.train) {
    memory.gradients = dense.gradients + expert.gradients;
    memory.optimizer = dense.optimizer + expert.optimizer;
    add_training_activations(query, memory);
    memory.workspace = Bytes(training_workspace(query) + reserved_by_libraries);
  } else {
    add_forward_activations(query, memory);
    memory.kv_cache = Bytes(kept_keys_and_values(query));
    memory.workspace = Bytes(reserved_by_libraries);
  }
  if (experts) {
    const std::int64_t sent = query.rows ? query.rows->sent : padded_rows(query);
    memory.exchange_buffers = Bytes(bf16 * (sent + expert_rows(query)) * model.hidden);
  }
  return memory;
}

}  // namespace moesim::model
