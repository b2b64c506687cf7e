#include "sim/model/megatron/megatron_keys.hpp"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <string_view>

#include "sim/base/text.hpp"

namespace moesim::model {
namespace {

// The values of "[a, b]", or the text itself.
std::vector<std::string> values_in(const std::string& text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return {unquoted(text)};
  std::vector<std::string> values;
  std::istringstream items(text.substr(1, text.size() - 2));
  for (std::string item; std::getline(items, item, ',');) {
    values.push_back(unquoted(std::string(trimmed(item))));
  }
  return values;
}

// Whether a value is one of these words in small letters, in capitals, or with the first letter
// alone in capitals (yaml/resolver.py), without quotes.
bool is_word(const std::string& value, std::initializer_list<std::string_view> words) {
  std::string small = value;
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  if (std::find(words.begin(), words.end(), small) == words.end()) return false;
  const auto is_small = [](unsigned char letter) { return std::islower(letter) != 0; };
  return std::all_of(value.begin() + 1, value.end(), is_small) ||
         std::none_of(value.begin(), value.end(), is_small);
}

bool says_yes(const std::string& value) { return is_word(value, {"true", "yes", "on"}); }

// "None" is what Python writes where it means null.
bool says_no(const std::string& value) {
  return is_word(value, {"false", "no", "off", "null"}) || value == "~" || value == "None";
}

// `off`: the argument says that the key is false.
struct ConfigKey {
  std::string_view key;
  const char* argument;
  bool off = false;
};
constexpr ConfigKey config_keys[] = {
    {"num-moe-experts", "num-experts"},
    {"gated-linear-unit", "swiglu"},
    {"fp8", "fp8-format"},
    {"fp4", "fp4-format"},
    {"virtual-pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"},
    {"num-query-groups", "group-query-attention"},
    {"num-layers-in-first-pipeline-stage", "decoder-first-pipeline-num-layers"},
    {"num-layers-in-last-pipeline-stage", "decoder-last-pipeline-num-layers"},
    {"grad-reduce-in-fp32", "grad-reduce-in-bf16", true},
    {"add-bias-linear", "disable-bias-linear", true},
    {"share-embeddings-and-output-weights", "untie-embeddings-and-output-weights", true},
};

constexpr std::string_view of_dtype = "dtype";

// "torch.bfloat16" as Megatron-LM's arguments have it.
std::string dtype_of(const std::string& text) {
  const std::string name = text.substr(text.rfind('.') + 1);
  if (name == "bfloat16") return "bf16";
  if (name == "float32" || name == "float") return "fp32";
  if (name == "float16" || name == "half") return "fp16";
  return name == "uint8" ? "fp8" : text;
}

bool is_dtype(const std::string& key) {
  return key.size() >= of_dtype.size() &&
         key.compare(key.size() - of_dtype.size(), of_dtype.size(), of_dtype) == 0;
}

}  // namespace

std::string unquoted(const std::string& text) {
  const bool quoted = text.size() > 1 && (text.front() == '"' || text.front() == '\'') &&
                      text.back() == text.front();
  return quoted ? text.substr(1, text.size() - 2) : text;
}

std::vector<KeyValue> key_values(const std::string& key, const std::string& value,
                                 const std::vector<std::string>& items) {
  std::vector<std::string> values = items;
  if (!value.empty() && !says_yes(value)) values = values_in(value);
  if (is_dtype(key)) {
    for (std::string& each : values) each = dtype_of(each);
  }
  const bool is_no = says_no(value);
  std::vector<KeyValue> found;
  const auto* const known = std::find_if(std::begin(config_keys), std::end(config_keys),
                                         [&](const ConfigKey& each) { return each.key == key; });
  const bool is_known = known != std::end(config_keys);
  if (is_known) {
    KeyValue stands_for{known->argument, {}, is_no == known->off};
    if (!known->off && !is_no) stands_for.values = values;
    found.push_back(std::move(stands_for));
  }
  found.push_back({key, is_no ? std::vector<std::string>{} : std::move(values), !is_no, is_known});
  return found;
}

std::vector<KeyValue> precision_recipe(const std::string& name) {
  std::string recipe = name;
  std::replace(recipe.begin(), recipe.end(), '-', '_');
  struct Recipe {
    std::string_view name;
    const char* fp8;  // "": none
    const char* recipe;
    bool gathers_low;
    bool spares_ends;  // the first and the last layer are in bf16
  };
  // megatron/bridge/training/mixed_precision.py
  constexpr Recipe recipes[] = {
      {"mixed", "", "", false, false},
      {"with_fp8_delayed_scaling_mixed", "hybrid", "delayed", true, false},
      {"with_fp8_current_scaling_mixed", "hybrid", "tensorwise", true, true},
      {"with_fp8_subchannel_scaling_mixed", "hybrid", "blockwise", false, false},
      {"with_mxfp8_mixed", "e4m3", "mxfp8", true, false},
      {"with_nvfp4_mixed", "", "nvfp4", false, false},
  };
  const auto line = recipe.find('_');
  const std::string base = recipe.substr(0, line);
  if (line == std::string::npos || (base != "bf16" && base != "fp16")) return {};
  const auto* const known =
      std::find_if(std::begin(recipes), std::end(recipes),
                   [&](const Recipe& each) { return recipe.substr(line + 1) == each.name; });
  if (known == std::end(recipes)) return {};
  const std::string_view fp8 = known->fp8;
  const bool is_fp4 = std::string_view(known->recipe) == "nvfp4";
  std::vector<KeyValue> found;
  found.push_back({"bf16", {}, base == "bf16"});
  found.push_back({"fp16", {}, base == "fp16"});
  found.push_back({"fp8-format", {std::string(fp8)}, !fp8.empty()});
  found.push_back({"fp8-recipe", {known->recipe}, !fp8.empty()});
  found.push_back({"fp8-param-gather", {}, known->gathers_low});
  found.push_back({"fp4-format", {"e2m1"}, is_fp4});
  found.push_back({"first-last-layers-bf16", {}, known->spares_ends});
  found.push_back({"grad-reduce-in-bf16", {}, base == "fp16"});  // else in fp32
  return found;
}

}  // namespace moesim::model
