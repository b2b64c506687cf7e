#pragma once

#include <cstdint>
#include <optional>

#include "sim/base/units.hpp"
#include "sim/model/model.hpp"

namespace moesim::model {

// What one GPU holds at the peak of a step, part by part, in bytes. bf16 weights, gradients and
// activations; Adam with fp32 master weights.
struct MemoryFootprint {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
  Bytes activations;       // kept from the forward pass for the backward pass, logits included
  Bytes kv_cache;          // of a forward pass: keys and values of its tokens, for decoding
  Bytes exchange_buffers;  // send sides of dispatch and combine
  Bytes einsum_masks;      // dispatch and combine tensors of the einsum backend
  Bytes workspace;         // largest transient tensors, and what the libraries reserve

  Bytes total() const {
    return parameters + gradients + optimizer + activations + kv_cache + exchange_buffers +
           einsum_masks + workspace;
  }
};

// Rows of the exchanges of a GPU, the busiest one where they differ.
struct ExchangeRows {
  std::int64_t mean = 0;  // computed by its experts, over layers
  std::int64_t most = 0;  // in one layer
  std::int64_t sent = 0;  // the most in one layer
  // The rows of the largest padded block, where blocks may hold more than C; 0: C.
  std::int64_t block = 0;
};

// One GPU's share of a step. All of it is needed; a model without experts, or experts = 0, ignores
// the fields of the exchange.
struct MemoryQuery {
  const Model* model = nullptr;
  int experts = 0;                   // E per MoE layer; 0: the dense counterpart
  int gpus = 1;                      // G
  int expert_parallel = 1;           // P, divides both
  std::int64_t tokens = 0;           // S, tokens per GPU of one micro-step
  std::int64_t capacity = 0;         // C, rows per (source GPU, expert) block of the exchange
  std::optional<ExchangeRows> rows;  // instead, where blocks differ
  std::optional<std::int64_t> gate_outputs;  // columns of the gate's matrix, if not E
  std::int64_t mixed_slots = 0;              // soft routing: slots per sequence, E p
  std::int64_t ir_rows = 0;                  // rows of intra-GPU rectification per GPU and layer
  int choices = 1;                           // k', routes per token
  int zero = 1;                              // 0 to 3
  std::optional<int> expert_zero;            // another ZeRO stage for the expert parameters
  bool checkpointing = false;                // keep each layer's input only, and recompute the rest
  bool einsum = false;
  bool train = true;                 // false: one forward pass, which keeps keys and values alone
  std::int64_t sequence_length = 0;  // what windows are of; 0: the tokens are one sequence
};

// The memory of `parameters` weights under ZeRO over `replicas` GPUs that hold the same ones:
// bf16 weights (2 bytes) and gradients (2), Adam state (12: fp32 master weights and two moments).
// Stage 1 shares out the state, 2 the gradients too, 3 the weights too (Rajbhandari et al. 2020,
// arXiv:1910.02054, section 3.1 and figure 1).
struct StateMemory {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
};
StateMemory state_memory(std::int64_t parameters, std::int64_t replicas, int zero);

// Bytes that the backward pass of one dense layer needs from its forward pass, per token:
// the itemisation of Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1) without dropout masks,
// with flash attention in place of the s x s tensors (its output and one fp32 log-sum-exp per head
// are kept). For their layer (GELU, f = 4 h) that is their 34 h less 2 h of dropout masks.
std::int64_t attention_activation_bytes(const Model& model);
std::int64_t ffn_activation_bytes(const Model& model, std::int64_t inner);

// Bytes per token of what later tokens attend to, of one attention block: keys and values, or under
// latent attention the compressed row and the rotated part of the key that all heads share
// (DeepSeek-V2, arXiv:2405.04434, table 1).
std::int64_t kv_cache_bytes(const Model& model);

// Throws UsageError when the query makes no sense (E not divisible by P, ...).
MemoryFootprint memory_footprint(const MemoryQuery& query);

}  // namespace moesim::model
