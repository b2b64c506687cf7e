#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "sim/model/megatron/megatron_arguments.hpp"

namespace moesim::model {

// The arguments that name a kind of attention, and which layers have it.
inline constexpr const char* variant_argument = "experimental-attention-variant";
inline constexpr const char* former_variant_argument = "linear-attention-type";  // before it
inline constexpr const char* linear_layers_argument = "linear-attention-freq";

// Whether layers have gated DeltaNet: gated_delta_net, or gdn as newer releases name it
// (megatron/core/models/gpt/experimental_attention_variant_module_specs.py).
bool has_linear_attention(const MegatronArguments& arguments);

// It as "linear" of a model's document. The last of each --linear-attention-freq layers has softmax
// attention, or a list has 0 for these. Throws UsageError where a size is missing, and where a list
// has another pattern than a document can have.
nlohmann::json linear_attention(const MegatronArguments& arguments, std::int64_t layers);

}  // namespace moesim::model
