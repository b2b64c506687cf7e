#include "sim/model/megatron/tokenizers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "sim/base/text.hpp"

namespace moesim::model {
namespace {

struct Vocabulary {
  std::string_view name;  // how a folder or file of a tokenizer is called, in small letters
  std::int64_t tokens;
  const char* source;
};

// The rows of the embedding, as the shipped models have them; a tokenizer alone can have some less.
// Where two names fit, the one above is taken: it is the longer one.
constexpr Vocabulary by_name[] = {
    {"mixtral-8x22b-instruct", 32768, "config.json of mistralai/Mixtral-8x22B-Instruct-v0.1"},
    {"mixtral", 32000, "config.json of mistralai/Mixtral-8x7B-v0.1"},
    {"llama-2", 32000, "config.json of meta-llama/Llama-2-7b-hf"},
    {"llama2", 32000, "config.json of meta-llama/Llama-2-7b-hf"},
    {"llama-3", 128256, "config.json of meta-llama/Meta-Llama-3-70B"},
    {"llama3", 128256, "config.json of meta-llama/Meta-Llama-3-70B"},
    {"qwen3-235b", 151936, "config.json of Qwen/Qwen3-235B-A22B"},
    {"qwen3-30b", 151936, "config.json of Qwen/Qwen3-30B-A3B"},
    {"deepseek-v3", 129280, "config.json of deepseek-ai/DeepSeek-V3"},
    {"deepseek-v2", 102400, "config.json of deepseek-ai/DeepSeek-V2"},
    {"kimi-k2", 163840, "config.json of moonshotai/Kimi-K2-Base"},
    {"gpt-oss", 201088, "config.json of openai/gpt-oss-120b"},
    {"olmoe", 50304, "config.json of allenai/OLMoE-1B-7B-0125"},
    {"gpt2", 50257, "Radford et al. 2019, section 2.2"},
};

// Types of Megatron-LM (megatron/training/tokenizer/tokenizer.py) and of its forks that are made
// for one vocabulary.
constexpr Vocabulary by_type[] = {
    {"gpt2bpetokenizer", 50257, "Radford et al. 2019, section 2.2"},
    {"llama2tokenizer", 32000, "config.json of meta-llama/Llama-2-7b-hf"},
    {"llama3tokenizer", 128256, "config.json of meta-llama/Meta-Llama-3-70B"},
};

std::string small_letters(std::string_view text) {
  std::string small(text);
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return small;
}

// "Meta-Llama-3-8B" has "llama-3" where a word begins; "codellama-34b" has not.
bool has_word(std::string_view part, std::string_view word) {
  const std::size_t at = part.find(word);
  if (at == std::string_view::npos) return false;
  return at == 0 || std::isalnum(static_cast<unsigned char>(part[at - 1])) == 0;
}

// The vocabulary that a path or name stands for, by the last of its parts that is known: the file
// itself is called tokenizer.model.
const Vocabulary* named_by(const std::string& path) {
  const std::string small = small_letters(path);
  std::vector<std::string_view> parts = split(small, '/');
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const auto* const known =
        std::find_if(std::begin(by_name), std::end(by_name),
                     [&](const Vocabulary& each) { return has_word(*part, each.name); });
    if (known != std::end(by_name)) return known;
  }
  return nullptr;
}

}  // namespace

std::optional<KnownVocabulary> known_vocabulary(const MegatronArguments& arguments) {
  for (const char* argument : {"tokenizer-model", "tokenizer-name-or-path"}) {
    const auto path = arguments.known_text(argument);
    if (!path) continue;
    const Vocabulary* const known = named_by(*path);
    if (known == nullptr) continue;
    return KnownVocabulary{known->tokens, fmt::format("--{} {}", argument, *path), known->source};
  }
  const auto type = arguments.known_text("tokenizer-type");
  if (!type) return std::nullopt;
  const std::string small = small_letters(*type);
  for (const Vocabulary& each : by_type) {
    if (small != each.name) continue;
    return KnownVocabulary{each.tokens, fmt::format("--tokenizer-type {}", *type), each.source};
  }
  return std::nullopt;
}

}  // namespace moesim::model
