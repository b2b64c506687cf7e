#pragma once

#include "sim/model/model.hpp"

// Families with shared experts beside those that a router chooses, which name their fields as
// DeepSeek's do.
namespace moesim::model::hugging_face {

void read_deepseek(const Node& node, Model& model);
void read_glm4_moe(const Node& node, Model& model);

}  // namespace moesim::model::hugging_face
