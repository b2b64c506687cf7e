#pragma once

#include <cstdint>
#include <string>

#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/model/model.hpp"

namespace moesim::model {

// The model that arguments of Megatron-LM describe, with Megatron's defaults for what they do not
// say. Throws UsageError naming file, line and argument; without --vocab-size too, where a
// tokenizer decides it that is not known by its name (sim/model/megatron/tokenizers.hpp). Without a
// known --seq-length that of the model is 0.
Model megatron_model(const MegatronArguments& arguments);

// How long a model's sequences are where that is not typed. Throws UsageError where its script does
// not say it.
std::int64_t usual_sequence_length(const Model& model);

// A note which vocabulary a known tokenizer gives; "" where the arguments say it.
std::string vocabulary_note(const MegatronArguments& arguments);

// A note that values are clamped which no unit clamps; "" where there is a gate, or nothing to
// clamp.
std::string clamp_note(const MegatronArguments& arguments);

// Whether an argument describes it.
bool tells_model(const MegatronArguments& arguments);

// Spares each argument that only describes the model, where it comes from elsewhere.
void spare_model_arguments(MegatronArguments& arguments);

// Asks for each argument that only describes the model, where it comes from elsewhere.
void mark_model_arguments(const MegatronArguments& arguments);

}  // namespace moesim::model
