#include "sim/model/megatron/megatron_counterparts.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace moesim::model {
namespace {

// Megatron-DeepSpeed, megatron/arguments.py; NeMo 1, megatron_gpt_config.yaml.
constexpr std::pair<std::string_view, const char*> counterparts[] = {
    {"activations-checkpoint-granularity", "recompute-granularity"},
    {"activations-checkpoint-method", "recompute-method"},
    {"activations-checkpoint-num-layers", "recompute-num-layers"},
    {"checkpoint-num-layers", "recompute-num-layers"},
    {"encoder-seq-length", "seq-length"},
    {"moe-expert-parallel-size", "expert-model-parallel-size"},
    {"moe-train-capacity-factor", "moe-expert-capacity-factor"},
    {"topk", "moe-router-topk"},
};

constexpr std::string_view of_deepspeed[] = {"deepspeed", "deepspeed-config",
                                             "moe-expert-parallel-size", "topk", "zero-stage"};

template <std::size_t count>
bool is_one_of(const std::string& text, const std::string_view (&known)[count]) {
  return std::find(std::begin(known), std::end(known), text) != std::end(known);
}

}  // namespace

std::string counterpart(const std::string& name) {
  const auto* const found = std::find_if(std::begin(counterparts), std::end(counterparts),
                                         [&](const auto& each) { return each.first == name; });
  return found == std::end(counterparts) ? name : found->second;
}

bool is_of_deepspeed(const std::string& name) { return is_one_of(name, of_deepspeed); }

std::vector<KeyValue> nemo_values(const YamlKey& key) {
  const std::string value = unquoted(key.value);
  if (key.parent == "trainer" && key.name == "devices") return {{"num-gpus", {value}}};
  if (key.parent == "trainer" && key.name == "num-nodes") return {{"num-nodes", {value}}};
  if ((key.parent == "trainer" || key.parent == "model") && key.name == "precision") {
    if (value.rfind("bf16", 0) == 0) return {{"bf16"}};
    if (value.rfind("16", 0) == 0) return {{"fp16"}};
  }
  constexpr std::string_view distributed[] = {"mcore_distributed_optim", "distributed_fused_adam"};
  if (key.parent == "optim" && key.name == "name" && is_one_of(value, distributed)) {
    return {{"use-distributed-optimizer"}};
  }
  if (key.parent == "optim" && key.name == "overlap-grad-sync") {
    return key_values("overlap-grad-reduce", key.value, {});
  }
  if (key.parent == "optim" && key.name == "overlap-param-sync") {
    return key_values("overlap-param-gather", key.value, {});
  }
  if (key.parent == "tokenizer" && key.name == "type") {
    return {{"tokenizer-model", {value}}, {"tokenizer-type", {value}}};
  }
  if (key.parent == "tokenizer" && key.name == "library") return {{"tokenizer-library", {value}}};
  if (key.parent != "model") return {};
  if (key.name == "ub-tp-comm-overlap") return key_values("tp-comm-overlap", key.value, {});
  constexpr std::string_view gated[] = {"swiglu", "fast-swiglu", "reglu", "fast-reglu"};
  constexpr std::string_view gated_gelu[] = {"geglu", "fast-geglu"};
  if (key.name == "activation" && is_one_of(value, gated)) return {{"swiglu"}};
  if (key.name == "activation" && is_one_of(value, gated_gelu)) return {{"quick-geglu"}};
  if (key.name == "bias") return key_values("add-bias-linear", key.value, {});
  return {};
}

std::string every_nth_layer(std::int64_t layers, std::int64_t interval) {
  std::string text = "[";
  for (std::int64_t layer = 1; layer <= layers; ++layer) {
    text += layer % interval == 0 ? "1" : "0";
    text += layer < layers ? "," : "]";
  }
  return text;
}

}  // namespace moesim::model
