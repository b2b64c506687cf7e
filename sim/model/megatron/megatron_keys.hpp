#pragma once

#include <string>
#include <vector>

namespace moesim::model {

// What a key of a configuration says of an argument of Megatron-LM.
struct KeyValue {
  std::string argument;
  std::vector<std::string> values = {};
  bool is_set = true;          // else that the argument is not there
  bool is_understood = false;  // it stands beside the argument of that key
};

// Keys of a TransformerConfig (Megatron-Core, Megatron-Bridge, NeMo) have no dashes, and some are
// other words than the argument that sets them, or its contrary. `key`: with dashes for
// underscores. `value`: as a YAML has it behind the colon, or the override of a command line behind
// the "=": booleans and null are those of YAML 1.1, as PyYAML resolves them. `items`: the list
// below the key.
std::vector<KeyValue> key_values(const std::string& key, const std::string& value,
                                 const std::vector<std::string>& items);

// What Megatron-Bridge's recipe of that name (mixed_precision: bf16_with_mxfp8_mixed) sets; nothing
// for other names.
std::vector<KeyValue> precision_recipe(const std::string& name);

std::string unquoted(const std::string& text);

}  // namespace moesim::model
