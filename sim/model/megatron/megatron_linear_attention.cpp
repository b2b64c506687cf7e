#include "sim/model/megatron/megatron_linear_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/model/megatron/layer_pattern.hpp"

namespace moesim::model {
namespace {

// The last of each so many layers has softmax attention, 0: none has; or 1 and 0 for each layer.
std::int64_t softmax_period(const MegatronArguments& arguments, std::int64_t layers) {
  const std::string text = layer_words(arguments, linear_layers_argument);
  const auto every = parse_number<std::int64_t>(text);
  constexpr const char* none = "no layer has linear attention: leave it out";
  if (every && *every == 1) arguments.fail(linear_layers_argument, fmt::format("1: {}", none));
  if (every && *every > 1) return std::min(*every, layers + 1);
  const std::vector<bool> linear = listed_layers(arguments, linear_layers_argument, text, layers);
  const auto first = std::find(linear.begin(), linear.end(), false);
  if (first == linear.end()) return 0;
  const std::int64_t period = first - linear.begin() + 1;
  if (std::find(linear.begin(), linear.end(), true) == linear.end()) {
    arguments.fail(linear_layers_argument, none);
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (linear[static_cast<std::size_t>(layer)] == ((layer + 1) % period != 0)) continue;
    arguments.fail(linear_layers_argument,
                   fmt::format("layer {} breaks the pattern that every {}th has softmax "
                               "attention, the only one that a model can have",
                               layer, period));
  }
  return period;
}

}  // namespace

bool has_linear_attention(const MegatronArguments& arguments) {
  for (const char* name : {variant_argument, former_variant_argument}) {
    const std::string kind = arguments.known_text(name).value_or("");
    if (kind == "gated_delta_net" || kind == "gdn") return true;
  }
  return false;
}

// Megatron's defaults of sizes are not those of all releases: they are asked for.
nlohmann::json linear_attention(const MegatronArguments& arguments, std::int64_t layers) {
  const auto needed = [&](const char* name) {
    if (const auto value = arguments.size(name)) return *value;
    throw UsageError(fmt::format(
        "{}: --{} is missing beside --experimental-attention-variant gated_delta_net: add it, or "
        "give --model",
        arguments.name(), name));
  };
  if (!arguments.has(linear_layers_argument)) needed(linear_layers_argument);
  return {{"key_heads", needed("linear-num-key-heads")},
          {"value_heads", needed("linear-num-value-heads")},
          {"key_dim", needed("linear-key-head-dim")},
          {"value_dim", needed("linear-value-head-dim")},
          {"convolution", needed("linear-conv-kernel-dim")},
          {"full_every", softmax_period(arguments, layers)}};
}

}  // namespace moesim::model
