#pragma once

#include "sim/model/model.hpp"

// Families with shared experts beside those that a router chooses, most of them after a few dense
// layers.
namespace moesim::model::hugging_face {

void read_deepseek(const Node& node, Model& model);
void read_glm4_moe(const Node& node, Model& model);
void read_glm4_moe_lite(const Node& node, Model& model);
void read_dots1(const Node& node, Model& model);
void read_bailing_moe(const Node& node, Model& model);  // Ling 1 and 2
void read_ernie(const Node& node, Model& model);
void read_hunyuan_moe(const Node& node, Model& model);

}  // namespace moesim::model::hugging_face
