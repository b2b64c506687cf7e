#pragma once

#include "sim/model/model.hpp"

// Qwen's families, from Qwen2 to Qwen3.5.
namespace moesim::model::hugging_face {

void read_qwen2(const Node& node, Model& model);
void read_qwen3(const Node& node, Model& model);
void read_qwen_moe(const Node& node, Model& model);
void read_qwen3_moe(const Node& node, Model& model);

// Models with gated DeltaNet in most layers and a gate on the output of attention in the others
// (transformers, modeling_qwen3_next.py, modeling_qwen3_5.py, modeling_qwen3_5_moe.py). Sizes that
// are not there are those of their classes.
void read_qwen3_next(const Node& node, Model& model);
void read_qwen3_5(const Node& node, Model& model);  // dense
void read_qwen3_5_moe(const Node& node, Model& model);

}  // namespace moesim::model::hugging_face
