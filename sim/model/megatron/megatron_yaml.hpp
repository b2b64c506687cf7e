#pragma once

#include <string>
#include <vector>

namespace moesim::model {

struct ScriptCall;

struct YamlKey {
  std::string name;                // with dashes for underscores, none in front
  std::string section;             // the outermost key above it; "" for that itself
  std::string parent;              // the key right above it
  std::string value;               // behind the colon, as it is written, without a comment
  std::vector<std::string> items;  // of the list below it; "[a" begins one in the list
  bool is_argument = false;        // written with the dashes of an argument
  bool is_section = false;         // of other keys
  int line = 0;
};

struct YamlKeys {
  std::vector<YamlKey> keys;  // of all levels
  // Sections of another model beside the one that is trained, such as "9 of vision_config (line
  // 8)".
  std::vector<std::string> left_out;
};

// The keys of a Megatron-LM, Megatron-Bridge or NeMo configuration. Left out are keys in capitals
// (of the environment) and those that begin with an underscore, which name a Python object: a dtype
// and an enum that are written so are the value of the key above ("_target_: torch.bfloat16",
// "_name_: auto").
YamlKeys yaml_keys(const std::string& text);

// Puts in what ${data.seq_length} is in the file (Hydra), by the names of a key and of the keys
// above it, what ${.seq_length} is, the key beside the one that has it, and what ${TP} is in the
// call. Others stay as they are written.
void put_in_references(std::vector<YamlKey>& keys, const ScriptCall& call);

}  // namespace moesim::model
