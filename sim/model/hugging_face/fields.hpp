#pragma once

#include <string>
#include <vector>

#include "sim/model/model.hpp"

// Fields that config.json files of several families of models have alike.
namespace moesim::model::hugging_face {

constexpr std::int64_t working_length = 4096;  // of a sequence, unless the model has less

// Sizes that all decoders of the library name alike. Heads without a head_dim have `head_dim`
// values; 0: the heads divide the hidden state.
void read_sizes(const Node& node, Model& model, std::int64_t head_dim = 0);

// Keys of a layer's experts. `count` may have another of the library's names for it.
struct ExpertKeys {
  const char* count;
  const char* ffn;
  const char* top_k = "num_experts_per_tok";
};

// Every layer holds them. The library's code drops no token unless the family says otherwise.
MoeBlock read_experts(const Node& node, const ExpertKeys& keys);

// A count that a configuration gives once, or for each layer, then of the same value in all.
int same_in_all_layers(const Node& node, const char* key);

// Which layers attend to all tokens, as the last of each so many; 0: none.
int period_of(const std::vector<bool>& full, const Node& node, const char* key);

// The same, of layer_types.
int full_period(const Node& node, const Model& model);

void read_sliding_window(const Node& node, Model& model);

// Windows in the layers from max_window_layers on, which no model can have.
void refuse_upper_windows(const Node& node, const Model& model);

// A dense decoder.
void read_llama(const Node& node, Model& model);

// Refuses layers whose attention or FFN a configuration lists otherwise than the family's reader
// has taken them.
void check_layers(const Node& node, const Model& model);

}  // namespace moesim::model::hugging_face
