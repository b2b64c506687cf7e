#include "sim/model/megatron/megatron_other_models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/model/megatron/megatron_linear_attention.hpp"

namespace moesim::model {
namespace {

constexpr const char* several_kinds = "layers of several kinds";

// Arguments that make other layers than those that are known, and which layers.
constexpr std::pair<const char*, const char*> of_other_models[] = {
    {"decoder-num-layers", "an encoder beside the decoder"},
    {variant_argument, "attention of another kind"},
    {"heterogeneous-layers-config-encoded-json", "layers of several sizes"},
    {"heterogeneous-layers-config-path", "layers of several sizes"},
    {"hybrid-attention-ratio", several_kinds},
    {"hybrid-layer-pattern", several_kinds},
    {"hybrid-mlp-ratio", several_kinds},
    {"hybrid-override-pattern", several_kinds},
    {"is-hybrid-model", several_kinds},
    {linear_layers_argument, "linear attention"},
    {former_variant_argument, "linear attention"},
    {"moe-latent-size", "experts of a latent size"},
};

// The kinds of layers in a hybrid pattern, "M-M*ME|ME", which has a letter for each layer
// (megatron/core/models/hybrid/layers/utils.py, Symbols). Attention and FFN are layers of their
// own.
std::string kinds_in(const std::string& pattern) {
  constexpr std::pair<char, const char*> kinds[] = {
      {'M', "Mamba"},
      {'D', "sparse attention"},
      {'C', "compressed sparse attention"},
      {'H', "heavily compressed attention"},
      {'W', "attention of a window"},
      {'+', "latent attention"},
  };
  std::vector<std::string> found;
  for (const auto& [letter, kind] : kinds) {
    if (pattern.find(letter) == std::string::npos) continue;
    found.push_back(fmt::format("{} ({})", kind, letter));
  }
  if (!found.empty()) {
    return fmt::format("{}, {} among them", several_kinds, fmt::join(found, ", "));
  }
  return fmt::format(
      "attention and FFN as {} (--num-layers, --moe-layer-freq and "
      "--linear-attention-freq describe a model of pairs)",
      several_kinds);
}

std::string other_layers(const char* name, const char* layers, const std::string& value) {
  const bool is_pattern = std::string_view(name).find("pattern") != std::string_view::npos;
  return is_pattern && !value.empty() ? kinds_in(value) : layers;
}

}  // namespace

void refuse_other_models(const MegatronArguments& arguments) {
  for (const auto& [name, layers] : of_other_models) {
    if (!arguments.has(name)) continue;
    const std::string value = arguments.known_text(name).value_or("");
    if (value == "0" || value == "0.0") continue;
    const std::string_view argument = name;
    const bool is_linear = argument == linear_layers_argument || argument == variant_argument ||
                           argument == former_variant_argument;
    if (is_linear && has_linear_attention(arguments)) continue;
    arguments.fail(name, fmt::format("{}: no such model is known; --model FILE gives another "
                                     "without it",
                                     other_layers(name, layers, value)));
  }
  // Megatron's own names of other layers; Mamba's sizes stand in configurations of any model.
  const std::string spec = arguments.known_text("spec").value_or("");
  if (spec.find("mamba") != std::string::npos || spec.find("hybrid") != std::string::npos) {
    arguments.fail("spec",
                   "Mamba or hybrid layers: no such model is known; --model FILE gives "
                   "another without it");
  }
  if (arguments.known_text("mlp-type").value_or("standard") != "standard") {
    arguments.fail("mlp-type", "a dense unit beside the experts of a layer is not known");
  }
}

std::string spec_note(const MegatronArguments& arguments) {
  const std::string spec = arguments.known_text("spec").value_or("");
  if (spec.empty() || spec.find("megatron.core.models.gpt") != std::string::npos) return "";
  return fmt::format(
      "note: {}: --spec {}: layers that it makes are not read, the model is that of the other "
      "arguments",
      arguments.name(), spec);
}

void mark_other_models(const MegatronArguments& arguments) {
  for (const auto& other : of_other_models) arguments.has(other.first);
  arguments.has("mlp-type");
  arguments.has("spec");
}

}  // namespace moesim::model
