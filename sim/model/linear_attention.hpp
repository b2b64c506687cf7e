#pragma once

#include <cstdint>

namespace moesim::model {

// Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464): in the place of softmax
// attention each value head has a state S of key_dim x value_dim, which every token decays,
// corrects by the delta rule and reads,
//   S <- g S + b k (v - g S^T k)^T,  o = S^T q,
// with a gate g and a rate b of its own. Queries, keys and values pass a causal convolution first;
// the output is normed by head and gated. The kernels work on chunks of 64 tokens (section 3.3;
// flash-linear-attention, fla/ops/gated_delta_rule).
struct LinearAttention {
  std::int64_t key_heads = 0;  // of queries and of keys; each is read by several value heads
  std::int64_t value_heads = 0;
  std::int64_t key_dim = 0;      // per head
  std::int64_t value_dim = 0;    // per head
  std::int64_t convolution = 0;  // tokens that it spans
  int full_every = 0;  // the last of each so many layers has softmax attention; 0: none does

  // The width of the keys, and of the values, of all heads.
  std::int64_t key_width() const { return key_heads * key_dim; }
  std::int64_t value_width() const { return value_heads * value_dim; }
  // Queries and keys as the kernels read them, once for each value head.
  std::int64_t repeated_width() const { return value_heads * key_dim; }
  // Channels of the convolution: queries, keys, values.
  std::int64_t convolved() const { return 2 * key_width() + value_width(); }
  // What the input projection makes: those, the output gate, and g and b of each value head.
  std::int64_t projected() const { return convolved() + value_width() + 2 * value_heads; }
  std::int64_t convolution_parameters() const { return convolution * convolved(); }

  // FLOPs per token of convolution and delta rule, forward, as Megatron-LM counts model FLOPs
  // (megatron/training/training.py): 2 c (2 d_k n_k + d_v n_v) + 8 n_v d_v^2.
  double model_flops() const;
};

// What a kernel does per token, all heads together. Bytes are those of tensors in bf16 that it
// reads and writes.
struct KernelWork {
  double flops = 0;
  double bytes = 0;
};

inline constexpr std::int64_t delta_rule_chunk = 64;

// The chunked delta rule. Per value head and chunk of C tokens, forward: K K^T, the inverse of a
// triangle, its products with K and V; U - W S, S + K^T V', Q S, Q K^T and its product with V',
//   6 d_k d_v + 2 C (3 d_k + 2 d_v) + 2/3 C^2 FLOPs per token;
// backward W, U and the states again, and the gradients of all,
//   16 d_k d_v + 2 C (10 d_k + 5 d_v) + 4 C^2.
// Counted in flash-linear-attention, fla/ops/gated_delta_rule/chunk.py, whose kernels hand on W, U,
// V' and each chunk's state through memory: forward 14 d_k + 12 d_v + 12 C + 4 d_k d_v / C bytes,
// backward 40 d_k + 30 d_v + 4 C + 8 d_k d_v / C. Gates are left out, 4 bytes per head.
KernelWork delta_rule_work(const LinearAttention& linear, bool backward);

// What is done around it, memory-bound: the convolution with its activation; queries and keys
// normed and repeated for the value heads, values and output gate copied out of the projection;
// the gated norm; backward also the gradient of the projection's output, put together. Counted in
// Megatron-Core, megatron/core/ssm/gated_delta_net.py, with what it fuses.
double bytes_beside_delta_rule(const LinearAttention& linear, bool backward);

// Copies around the all-to-alls of context ranks: what the input projection makes is put in the
// order of ranks, cut in pieces and brought from the balanced order of tokens to the plain one; the
// output goes the other way. Backward each again, the first as a sum into zeros. Counted in
// Megatron-Core, megatron/core/ssm/gated_delta_net/common.py and ssm/mamba_context_parallel.py.
double bytes_between_context_ranks(const LinearAttention& linear, bool backward);

}  // namespace moesim::model
