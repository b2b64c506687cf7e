#pragma once

#include "sim/model/memory/offload.hpp"
#include "sim/model/memory/recompute.hpp"
#include "sim/model/memory/shard_sizes.hpp"
#include "sim/model/memory/stage_weights.hpp"
#include "sim/model/model.hpp"
#include "sim/model/precision.hpp"

namespace moesim::model {

struct ActivationRules {
  Precision precision = Precision::bf16;  // of the inputs kept for weight gradients
  Recompute recompute;
  Offload offload;
  int choices = 1;  // k, experts per token
  double load = 1;  // rows over balance that a rank keeps, mean over the MoE layers that it holds
  double layer_load = 1;        // and in the layer at work, such as the 99th percentile
  bool flash_attention = true;  // else the scores are kept, 5 a s bytes (arXiv:2205.05198)
  bool dropout = false;         // masks of one byte behind attention and FFN
  bool sequence_parallel = true;
  bool fp8_attention = false;  // core attention in FP8 too
  bool fused_experts = false;  // one kernel clamps what enters their activation, if it is clamped
  double length = 0;           // s, of the scores
  double dispatched_element = 2;  // bytes, of rows on their way to experts
};

// Bytes that the backward pass of one layer needs from its forward pass, on one rank and per token
// of it (T', or T without sequence parallelism). In bf16 with flash attention
//   GQA  4 h + 2 d (a + 2 g) + 2 a d + 4 a    MLA  4 h + 4 r_q + 4 r + 2 e + 4 a (d + e) + 4 a u +
//   4 a dense FFN  4 h + 6 F                      MoE  4 h + k q (2 h + 6 f) + 6 f_s + 8 E
// after Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1), who with dropout, scores and MHA
// count 34 h + 5 a s. In another recipe the inputs of GEMMs take its bytes; where something else
// reads them too (core attention its output, the router its input), bf16 stays beside them, or
// alone where the GEMM is told to save its input before it is quantised: that behind latent
// attention and the shared experts' first one, but in fp8-delayed. FP8 attention saves one byte of
// queries, keys and values. Clamped experts keep 4 f k q more, what the clamps read beside what
// they wrote. A gate on the output of attention keeps 4 a d more: itself, and the output before it.
// Norms of each head's queries and keys keep 2 d (a + g) more, what they read.
// Linear attention (n_k and n_v heads of d_k and d_v, chunks of C): 4 h + 4 n_k d_k + 2 n_v d_v,
// what the convolution reads; 4 n_k d_k of queries and keys normed, where they are then repeated;
// 4 n_v d_k + 2 n_v d_v + 2 C n_v, what the delta rule reads, with its triangles in bf16; 8 n_v
// d_v, its output, that normed, the gate and both together; 10 n_v of gates
// (flash-linear-attention, l2norm.py; Megatron-Core, gated_delta_net.py). Recomputed modules keep
// nothing, nor do offloaded ones on the GPU; whole layers recomputed keep their input, 2 h.
double kept_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                  const ActivationRules& rules, AttentionKind attention = AttentionKind::softmax);
// What a layer with linear attention keeps more than one with softmax attention; below 0: less.
double linear_more_bytes(const Model& model, const ShardSizes& shards,
                         const ActivationRules& rules);
// What one layer keeps if nothing is recomputed, less that: it is there again while the layer's
// backward pass runs.
double recomputed_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                        const ActivationRules& rules,
                        AttentionKind attention = AttentionKind::softmax);

// What one layer copies to the host's memory in its forward pass, and back in its backward pass:
// the inputs of rules.offload that are not recomputed. Bytes as of kept_bytes(); of layers with
// linear attention no module of attention but its norm is offloaded (offload_refusal()).
double offloaded_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                       const ActivationRules& rules);
// What a prediction depth keeps beside its layer: inputs of two norms, and of the projection.
double mtp_kept_bytes(const Model& model, const ActivationRules& rules);

}  // namespace moesim::model
