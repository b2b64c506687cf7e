#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/model/model.hpp"
#include "sim/model/offload.hpp"
#include "sim/model/precision.hpp"
#include "sim/model/recompute.hpp"
#include "sim/model/shard_sizes.hpp"
#include "sim/model/training_exchanges.hpp"

namespace moesim::model {

// What a pipeline stage, or one chunk of it, holds. Counts may be fractions, for a mean stage.
struct StageContent {
  double dense_layers = 0;
  double moe_layers = 0;
  double mtp_depths = 0;
  bool embedding = false;
  bool head = false;  // with the final norm
  // Depths of prediction whose losses are computed by that head: of all stages, where it is
  // (Megatron-Core, gpt_model.py, _postprocess).
  double mtp_losses = 0;
  // Another chunk of the rank has the embedding: prediction depths need no copy of it.
  bool embedding_beside = false;
  // Of the model, where layers() follow each other from there on; -1: the dense ones come first.
  int first_layer = -1;

  double layers() const { return dense_layers + moe_layers; }
};
// `count` layers of a model from `first` on.
StageContent layers_of(const Model& model, int first, int count);
// The dense ones among the first `count` layers of a chunk, of which it may have fewer.
double dense_among_first(const Model& model, const StageContent& content, double count);

// Weights on one rank. Of the dense ones, `replicated` lie whole on every tensor rank, `gemm` are
// those that GEMMs in the recipe's format read; embedding, head, router and norms are not.
struct StageParameters {
  double dense = 0;
  double expert = 0;
  double gemm = 0;  // of dense
};
// With `experts` per MoE layer, copies included. Tensor ranks split projections, dense and shared
// FFN, embedding and head, and repeat norms, router and the down-projections of latent attention
// (Megatron-LM). A tied embedding is counted on the stages of embedding and head; once where they
// are the same. Prediction depths read the embedding: a stage without it has a copy (Megatron-Core,
// gpt_model.py).
StageParameters stage_parameters(const Model& model, const StageContent& content,
                                 const ShardSizes& shards, int experts);

// What the training software keeps of every weight.
struct StateRules {
  Precision precision = Precision::bf16;
  int zero = 1;  // what data-parallel ranks share: 0 nothing, 1 optimizer, 2 gradients, 3 all
  int gradient_bytes = 4;  // of a gradient that is added up and reduced; 2: bf16
  int moment_bytes = 4;    // of each of Adam's two; 2: bf16
  // Groups that each hold all shards (HSDP; Megatron's num_distributed_optimizer_instances); they
  // divide the replicas.
  int optimizer_instances = 1;
  bool low_precision_gather = false;
  bool transposed_copies = false;  // see gemm_weight_bytes
};
// Ranks that share what `replicas` of the same weights keep: all of them, or those of an optimizer
// instance. Throws UsageError where the instances do not divide them.
int sharing_ranks(int replicas, const StateRules& rules);
// Ranks of `ShardSizes::stage_copies` that share a stage's optimizer.
int owners(const ShardSizes& shards, const StateRules& rules);
struct StateBytes {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;  // fp32 master weights and two moments

  double total() const { return weights + gradients + optimizer; }
};
// bf16, zero 1: n_d (6 + 12 / D) + n_e (6 + 12 / EDP) bytes (Megatron-LM, docs of the distributed
// optimizer); zero 0: 18 each. Zero 3 shares all 18 and holds two layers' weights at a time, which
// is `gathered` more: see gathered_layers().
StateBytes state_bytes(const StageParameters& parameters, const ShardSizes& shards,
                       const StateRules& rules);
// The weights of the two largest neighbours of a stage, as zero 3 gathers them: those that ranks of
// an optimizer instance share. Embedding, layers, prediction depths (each behind the embedding that
// it reads) and head are neighbours.
double gathered_layers(const Model& model, const StageContent& content, const ShardSizes& shards,
                       const StateRules& rules, int experts);

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
  bool fused_experts = false;  // one kernel clamps what enters their activation, if it is clamped
  double length = 0;           // s, of the scores
  double dispatched_element = 2;  // bytes, of rows on their way to experts
};

enum class LayerKind { dense, moe };

// Bytes that the backward pass of one layer needs from its forward pass, on one rank and per token
// of it (T', or T without sequence parallelism). In bf16 with flash attention
//   GQA  4 h + 2 d (a + 2 g) + 2 a d + 4 a    MLA  4 h + 4 r_q + 4 r + 2 e + 4 a (d + e) + 4 a u +
//   4 a dense FFN  4 h + 6 F                      MoE  4 h + k q (2 h + 6 f) + 6 f_s + 8 E
// after Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1), who with dropout, scores and MHA
// count 34 h + 5 a s. In another recipe the inputs of GEMMs take its bytes; where something else
// reads them too (core attention its output, the router its input), bf16 stays beside them. Clamped
// experts keep 4 f k q more, what the clamps read beside what they wrote.
// Recomputed modules keep nothing, nor do offloaded ones on the GPU; whole layers recomputed keep
// their input, 2 h.
double kept_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                  const ActivationRules& rules);
// What one layer keeps if nothing is recomputed, less that: it is there again while the layer's
// backward pass runs.
double recomputed_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                        const ActivationRules& rules);

// What one layer copies to the host's memory in its forward pass, and back in its backward pass:
// the inputs of rules.offload that are not recomputed. Bytes as of kept_bytes().
double offloaded_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                       const ActivationRules& rules);

// A chunk of a stage and how many of its micro-batches are held at the peak.
struct HeldChunk {
  StageContent content;
  double in_flight = 1;
  // Of these, those that wait for their weight gradient: what was recomputed for the input gradient
  // is held until then.
  double waiting = 0;
};

struct StageMemoryQuery {
  const Model* model = nullptr;
  ShardSizes shards;
  int experts = 0;
  int copies = 0;  // of `experts`: their optimizer states are those of the experts they copy
  std::vector<HeldChunk> chunks;
  double tokens = 0;  // T of a tensor-parallel group, one micro-batch
  ContextMethod context = ContextMethod::ring;
  StateRules states;
  ActivationRules activations;
};

struct StageMemory {
  Bytes weights;
  Bytes gradients;
  Bytes optimizer;
  Bytes activations;  // kept, over all micro-batches in flight; offloaded ones of two layers
  Bytes recomputed;   // of the layer whose backward pass runs: the largest one recomputed
  Bytes logits;       // and their gradient: 6 V per token, 4 V for each depth's loss
  // Used by all layers. Dispatch and combine: 4 k T' h in bf16. Keys, values and their gradients
  // that context ranks gather, of all of them, or of two at a time that go round in a ring.
  Bytes exchange_buffers;
  Bytes offloaded;  // in the host's memory, not in total()

  Bytes states() const { return weights + gradients + optimizer; }
  Bytes total() const { return states() + activations + recomputed + logits + exchange_buffers; }
};
// Without what libraries and the CUDA context reserve. Throws UsageError for sizes out of range.
StageMemory stage_memory(const StageMemoryQuery& query);

}  // namespace moesim::model
