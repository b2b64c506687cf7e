#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/model/megatron/megatron_arguments.hpp"

namespace moesim::model {

// A vocabulary that is known by the name of its tokenizer.
struct KnownVocabulary {
  std::int64_t tokens = 0;
  std::string tokenizer;  // what names it: "--tokenizer-model mistralai/Mixtral-8x7B-v0.1"
  const char* source = "";
};

// The vocabulary of --tokenizer-model or --tokenizer-name-or-path, else that of --tokenizer-type.
// Nothing where neither is known: files of tokenizers are not read.
std::optional<KnownVocabulary> known_vocabulary(const MegatronArguments& arguments);

}  // namespace moesim::model
