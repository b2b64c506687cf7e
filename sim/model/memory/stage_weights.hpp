#pragma once

#include <cstdint>

#include "sim/model/memory/shard_sizes.hpp"
#include "sim/model/model.hpp"
#include "sim/model/precision.hpp"

namespace moesim::model {

enum class LayerKind { dense, moe };
enum class AttentionKind { softmax, linear };
LayerKind last_kind(const Model& model);  // of the last layer
// Layers of prediction depths, which follow the model's, are like its last one.
AttentionKind attention_kind(const Model& model, int layer);

// What a pipeline stage, or one chunk of it, holds. Counts may be fractions, for a mean stage.
struct StageContent {
  double dense_layers = 0;
  double moe_layers = 0;
  double linear_layers = 0;  // of them, those with linear attention
  double mtp_depths = 0;
  bool embedding = false;
  bool head = false;  // with the final norm
  // Depths of prediction whose losses are computed by that head: of all stages, where it is
  // (Megatron-Core, gpt_model.py, _postprocess).
  double mtp_losses = 0;
  // Another chunk of the rank has the embedding: prediction depths need no copy of it.
  bool embedding_beside = false;
  // The layer of the model from which on layers() follow each other; -1: the dense ones come first.
  int first_layer = -1;

  double layers() const { return dense_layers + moe_layers; }
};
// `count` layers of a model from `first` on.
StageContent layers_of(const Model& model, int first, int count);
// The dense ones among the first `count` layers of a chunk, of which it may have fewer; those with
// linear attention, of a mean stage its share.
double dense_among_first(const Model& model, const StageContent& content, double count);
double linear_among_first(const Model& model, const StageContent& content, double count);

// Weights on one rank. Of the dense ones, `replicated` lie whole on every tensor rank, `gemm` are
// those that GEMMs in the recipe's format read; embedding, head, router and norms are not.
struct StageParameters {
  double dense = 0;
  double expert = 0;
  double gemm = 0;  // of dense
};
// The parameters of a stage with `experts` per MoE layer, copies included. Tensor ranks split
// projections, dense and shared FFN, embedding, head and the heads of linear attention, and repeat
// norms, router and the down-projections of latent attention (Megatron-LM). A tied embedding is
// counted on the stages of embedding and head; once where they are the same. Prediction depths read
// the embedding: a stage without it has a copy (Megatron-Core, gpt_model.py).
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
  bool low_precision_gather = false;  // where the format allows it: fp8-block gathers bf16
  bool transposed_copies = false;     // see gemm_weight_bytes

  bool gathers_low() const {
    return low_precision_gather && precision != Precision::bf16 &&
           precision != Precision::fp8_block;
  }
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
// is more: see gathered_layers(); zero 2 and 3 hold two layers' gradients: see whole_gradients().
StateBytes state_bytes(const StageParameters& parameters, const ShardSizes& shards,
                       const StateRules& rules);
// The weights of the two largest neighbours of a stage, as zero 3 gathers them: those that ranks of
// an optimizer instance share. Embedding, layers, prediction depths (each behind the embedding that
// it reads) and head are neighbours.
double gathered_layers(const Model& model, const StageContent& content, const ShardSizes& shards,
                       const StateRules& rules, int experts);
// The gradients of the two largest neighbours, which zero 2 and 3 hold whole: those of the layer
// whose backward pass runs, and of the one before until they are reduced (Megatron-FSDP's buffers).
double whole_gradients(const Model& model, const StageContent& content, const ShardSizes& shards,
                       const StateRules& rules, int experts);
// MoE layers, those of prediction depths among them.
double moe_layers_with_depths(const Model& model, const StageContent& content);
// Key-value heads of all tensor ranks together: a rank has at least one.
std::int64_t spread_kv_heads(const Model& model, const ShardSizes& shards);

}  // namespace moesim::model
