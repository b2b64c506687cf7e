#pragma once

#include <string>

#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/model/model.hpp"

namespace moesim::model {

// The model that arguments of Megatron-LM describe, with Megatron's defaults for what they do not
// say. Throws UsageError naming file, line and argument; without --vocab-size too, where a
// tokenizer decides it that is not known by its name (sim/model/megatron/tokenizers.hpp).
Model megatron_model(const MegatronArguments& arguments);

// A note which vocabulary a known tokenizer gives; "" where the arguments say it.
std::string vocabulary_note(const MegatronArguments& arguments);

// A note that values are clamped which no unit clamps; "" where there is a gate, or nothing to
// clamp.
std::string clamp_note(const MegatronArguments& arguments);

// Whether an argument describes it.
bool tells_model(const MegatronArguments& arguments);

// Asks for each argument that only describes the model, where it comes from elsewhere.
void mark_model_arguments(const MegatronArguments& arguments);

}  // namespace moesim::model
