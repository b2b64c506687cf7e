#pragma once

#include <string>

#include "sim/base/enum_names.hpp"
#include "sim/model/model.hpp"

namespace moesim::model {

// Parts of a layer whose activations are dropped after the forward pass and computed again in the
// backward pass: Megatron's names (megatron/core/transformer/transformer_config.py).
enum class RecomputeModule : unsigned {
  layernorm = 1,
  moe_act = 2,
  mla_up_proj = 4,
  core_attn = 8,
  mlp = 16,
  shared_experts = 32,
  moe = 64,
};

inline constexpr EnumNames<RecomputeModule, 7> recompute_names{
    {{RecomputeModule::layernorm, "layernorm", "outputs of the norms"},
     {RecomputeModule::moe_act, "moe_act", "outputs of the experts' activation"},
     {RecomputeModule::mla_up_proj, "mla_up_proj", "queries, keys, values of latent attention"},
     {RecomputeModule::core_attn, "core_attn", "core attention"},
     {RecomputeModule::mlp, "mlp", "dense FFN"},
     {RecomputeModule::shared_experts, "shared_experts", "shared experts"},
     {RecomputeModule::moe, "moe", "router, exchange and experts"}}};

// Whole layers: of each group of `layers` only the input is kept (uniform), or that of each of the
// first `layers` layers of a stage (block).
enum class FullRecompute { none, uniform, block };

struct Recompute {
  unsigned modules = 0;
  FullRecompute full = FullRecompute::none;
  int layers = 1;

  bool has(RecomputeModule module) const { return (modules & static_cast<unsigned>(module)) != 0; }
  bool recomputes_experts() const {  // of MoE layers, alone or with all else
    return full != FullRecompute::none || has(RecomputeModule::moe);
  }
  void add(RecomputeModule module) { modules |= static_cast<unsigned>(module); }
};

// "none", a list of modules such as "layernorm,moe_act", "full", "full:uniform:4" or
// "full:block:2". Throws UsageError "WHERE: ...".
Recompute parse_recompute(const std::string& text, const std::string& where);
std::string name_of(const Recompute& recompute);

// What the backward pass of one layer does again. GEMM and attention FLOPs per token; norms and
// activations cost none.
struct RecomputeWork {
  double gemm_flops = 0;
  double core_attention_flops = 0;
  bool norms = false;
  bool expert_activation = false;
  bool context_exchange = false;  // of keys and values, where context ranks have them
  bool tensor_exchange = false;   // all-gathers and reduce-scatters of the forward pass
  bool dispatch = false;          // dispatch and combine, and the host's wait for the row counts
};
// `length` as in training_work.hpp; `rows` of experts per token. Modules that a layer does not have
// add nothing; under FullRecompute::block it is the work of a recomputed layer.
RecomputeWork recompute_work(const Model& model, int layer, const Recompute& recompute,
                             double length, double rows);

}  // namespace moesim::model
