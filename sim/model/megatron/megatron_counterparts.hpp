#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/model/megatron/megatron_keys.hpp"
#include "sim/model/megatron/megatron_yaml.hpp"

namespace moesim::model {

// Megatron-LM's argument for one of Megatron-DeepSpeed, of NeMo 1 or of an older Megatron-LM that
// means the same: "moe-router-topk" for "topk"; the name itself for others.
std::string counterpart(const std::string& name);

// Arguments of Megatron-DeepSpeed alone: one of them tells that its defaults hold.
bool is_of_deepspeed(const std::string& name);

// What a key of a NeMo 1 configuration says, by where it stands: "trainer: devices: 8" are GPUs of
// a node, "optim: name" may be that of a distributed optimizer. Empty for other keys.
std::vector<KeyValue> nemo_values(const YamlKey& key);

// 0 and 1 of each layer, where every n-th has experts: [0,1,0,1] of 4 layers and 2.
std::string every_nth_layer(std::int64_t layers, std::int64_t interval);

}  // namespace moesim::model
