#pragma once

#include <optional>
#include <string>

#include "sim/base/enum_names.hpp"
#include "sim/model/memory/recompute.hpp"

namespace moesim::model {

// Modules whose inputs are copied to the host's memory after their forward pass and back before
// their backward pass: the names of Megatron-Core's fine-grained activation offloading.
enum class OffloadModule : unsigned {
  attn_norm = 1,
  qkv_linear = 2,
  core_attn = 4,
  attn_proj = 8,
  mlp_norm = 16,
  expert_fc1 = 32,
  moe_act = 64,
};

inline constexpr EnumNames<OffloadModule, 7> offload_names{
    {{OffloadModule::attn_norm, "attn_norm", "of the norm before attention"},
     {OffloadModule::qkv_linear, "qkv_linear", "of its first projections"},
     {OffloadModule::core_attn, "core_attn", "queries, keys, values"},
     {OffloadModule::attn_proj, "attn_proj", "of the output projection"},
     {OffloadModule::mlp_norm, "mlp_norm", "of the norm before the FFN"},
     {OffloadModule::expert_fc1, "expert_fc1", "rows of experts"},
     {OffloadModule::moe_act, "moe_act", "of the experts' activation"}}};

struct Offload {
  unsigned modules = 0;

  bool has(OffloadModule module) const { return (modules & static_cast<unsigned>(module)) != 0; }
  void add(OffloadModule module) { modules |= static_cast<unsigned>(module); }
};

// "none" or a list of modules such as "expert_fc1,moe_act". Throws UsageError "WHERE: ...".
Offload parse_offload(const std::string& text, const std::string& where);
std::string name_of(const Offload& offload);
// Where whole layers are recomputed, which keep nothing that could be offloaded: a sentence that
// says so; else nothing.
std::optional<std::string> offload_refusal(const Offload& offload, const Recompute& recompute);

}  // namespace moesim::model
