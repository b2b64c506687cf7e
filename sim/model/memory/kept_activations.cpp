#include "sim/model/memory/kept_activations.hpp"

#include <algorithm>
#include <vector>

#include "sim/base/numbers.hpp"
#include "sim/base/units.hpp"

namespace moesim::model {
namespace {

constexpr double fp8 = 1;

// One tensor kept for the backward pass: elements per token, what they are read by, and the modules
// whose recomputation drops it.
struct Kept {
  double elements = 0;
  bool gemm_input = false;
  bool read_in_bf16 = true;  // by something else than a GEMM
  unsigned dropped_by = 0;
  unsigned offloaded_by = 0;
  bool split = true;  // over tensor ranks also without sequence parallelism
  double element = bf16_bytes;
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
  // Input and output of a norm in front of GEMMs that alone read it.
  void norm(double width, OffloadModule input, unsigned output = 0) {
    add({.elements = width, .offloaded_by = mask(input), .split = false});
    add({.elements = width,
         .gemm_input = true,
         .read_in_bf16 = false,
         .dropped_by = mask(RecomputeModule::layernorm),
         .offloaded_by = output,
         .split = false});
  }

  // The bytes of those that are not recomputed: what stays on the GPU, or what is offloaded.
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
    return kept.elements * (element_bytes(rules_.precision) + (kept.read_in_bf16 ? bf16_bytes : 0));
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

// Whether a product that is told to save its input before it is quantised does so: Transformer
// Engine 2.6 and later, in recipes without delayed scaling. Megatron-Core tells it where something
// else saves that input too (set_save_original_input: linear_proj of multi_latent_attention.py,
// linear_fc1 of shared_experts.py).
bool saves_original_input(const ActivationRules& rules) {
  return rules.precision != Precision::fp8_delayed;
}

void keep_attention(const Model& model, const ShardSizes& shards, const ActivationRules& rules,
                    KeptList& list) {
  list.norm(real(model.hidden), OffloadModule::attn_norm, mask(OffloadModule::qkv_linear));
  const double heads = real(model.heads);
  const double keys = real(model.latent ? model.heads : spread_kv_heads(model, shards));
  const double queries_keys_values =
      heads * real(model.query_key_dim()) + keys * real(model.query_key_dim() + model.value_dim());
  unsigned dropped_by = 0;
  if (model.latent) {
    keep_latent_inputs(model, list);
    dropped_by = mask(RecomputeModule::mla_up_proj);
  }
  // The norms of queries and keys read what the projection wrote, attention what they wrote and was
  // rotated (Megatron-Core, attention.py, get_query_key_value_tensors, which is what qkv_linear
  // offloads). Latent attention norms its bottlenecks instead.
  if (model.query_key_norm && !model.latent) {
    list.add({.elements = (heads + keys) * real(model.query_key_dim()),
              .offloaded_by = mask(OffloadModule::qkv_linear)});
  }
  // FP8 attention saves copies of its own (Transformer Engine, fused attention's fp8_tensors),
  // which mla_up_proj does not drop; recomputed core attention saves its inputs as they are.
  const bool saves_fp8 = rules.fp8_attention && !rules.recompute.has(RecomputeModule::core_attn);
  list.add({.elements = queries_keys_values,
            .dropped_by = saves_fp8 ? 0 : dropped_by,
            .offloaded_by = mask(OffloadModule::core_attn),
            .element = saves_fp8 ? fp8 : bf16_bytes});
  if (model.output_gate) list.add({.elements = 2 * heads * real(model.value_dim())});
  // Core attention saves its output; behind latent attention the projection saves the same tensor.
  list.add({.elements = heads * real(model.value_dim()),
            .gemm_input = !(model.latent && saves_original_input(rules)),
            .read_in_bf16 = !model.output_gate,
            .offloaded_by = mask(OffloadModule::attn_proj)});
  // Log-sum-exps of flash attention; else scores, their softmax and the mask of their dropout.
  list.other(rules.flash_attention ? fp32_bytes * heads : 5 * heads * rules.length,
             mask(RecomputeModule::core_attn));
}

void keep_linear_attention(const Model& model, KeptList& list) {
  const LinearAttention& linear = *model.linear;
  const double values = real(linear.value_width());
  list.norm(real(model.hidden), OffloadModule::attn_norm);
  list.add({.elements = real(linear.convolved())});
  if (linear.repeated_width() > linear.key_width()) {
    list.add({.elements = 2 * real(linear.key_width())});  // normed, before they are repeated
  }
  list.add({.elements = 2 * real(linear.repeated_width()) + values});
  list.add({.elements = real(delta_rule_chunk * linear.value_heads)});
  list.add({.elements = 3 * values});  // output of the delta rule, as it is and normed; gate
  list.add({.elements = values, .gemm_input = true, .read_in_bf16 = false});
  // In bf16 what g and b are made of, and b; in fp32 g.
  list.other((3 * bf16_bytes + fp32_bytes) * real(linear.value_heads), 0);
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
  const unsigned moe = mask(RecomputeModule::moe);
  // The router reads the norm's output in bf16, and experts read rows that are quantised on their
  // own, so that only shared experts could have a quantised copy of it.
  list.add({.elements = real(model.hidden),
            .offloaded_by = mask(OffloadModule::mlp_norm),
            .split = false});
  list.add({.elements = real(model.hidden),
            .dropped_by = mask(RecomputeModule::layernorm),
            .split = false});
  if (model.moe->shared_ffn > 0 && !saves_original_input(rules)) {
    list.add({.elements = real(model.hidden),
              .gemm_input = true,
              .read_in_bf16 = false,
              .dropped_by =
                  mask(RecomputeModule::layernorm) | mask(RecomputeModule::shared_experts) | moe,
              .split = false});
  }
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
                      const ActivationRules& rules, AttentionKind attention) {
  KeptList list(rules);
  if (attention == AttentionKind::linear) {
    keep_linear_attention(model, list);
  } else {
    keep_attention(model, shards, rules, list);
  }
  if (kind == LayerKind::moe) {
    keep_moe(model, shards, rules, list);
  } else {
    list.norm(real(model.hidden), OffloadModule::mlp_norm);
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

}  // namespace

double kept_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                  const ActivationRules& rules, AttentionKind attention) {
  if (rules.recompute.full != FullRecompute::none) return bf16_bytes * real(model.hidden);
  return kept_tensors(model, kind, shards, rules, attention)
      .bytes(rules, unsplit_parts(shards, rules), false);
}

double linear_more_bytes(const Model& model, const ShardSizes& shards,
                         const ActivationRules& rules) {
  if (!model.linear) return 0;
  const LayerKind kind = last_kind(model);  // whichever: its FFN is in both
  return kept_bytes(model, kind, shards, rules, AttentionKind::linear) -
         kept_bytes(model, kind, shards, rules);
}

double offloaded_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                       const ActivationRules& rules) {
  if (rules.offload.modules == 0 || rules.recompute.full != FullRecompute::none) return 0;
  return kept_tensors(model, kind, shards, rules, AttentionKind::softmax)
      .bytes(rules, unsplit_parts(shards, rules), true);
}

double recomputed_bytes(const Model& model, LayerKind kind, const ShardSizes& shards,
                        const ActivationRules& rules, AttentionKind attention) {
  ActivationRules kept = rules;
  kept.offload = {};
  ActivationRules all = kept;
  all.recompute = {};
  return std::max(0.0, kept_bytes(model, kind, shards, all, attention) -
                           kept_bytes(model, kind, shards, kept, attention));
}

double mtp_kept_bytes(const Model& model, const ActivationRules& rules) {
  const double hidden = real(model.hidden);
  return bf16_bytes * 2 * hidden + element_bytes(rules.precision) * 2 * hidden;
}

}  // namespace moesim::model
