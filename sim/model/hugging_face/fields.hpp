#pragma once

#include <string>
#include <vector>

#include "sim/model/model.hpp"

// Fields that config.json files of several families of models have alike.
namespace moesim::model::hugging_face {

// Sizes that all decoders of the library name alike.
void read_sizes(const Node& node, Model& model);

// Experts with the keys `count`, which may have another of the library's names for it, and `ffn`;
// every layer holds them. The library's code drops no token unless the family says otherwise.
MoeBlock read_experts(const Node& node, const char* count, const char* ffn);

// Which layers attend to all tokens, as the last of each so many; 0: none.
int period_of(const std::vector<bool>& full, const Node& node, const char* key);

// The same, of layer_types.
int full_period(const Node& node, const Model& model);

void read_sliding_window(const Node& node, Model& model);

// A dense decoder.
void read_llama(const Node& node, Model& model);

}  // namespace moesim::model::hugging_face
