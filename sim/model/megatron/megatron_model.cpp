#include "sim/model/megatron/megatron_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/text.hpp"
#include "sim/model/megatron/layer_pattern.hpp"
#include "sim/model/megatron/megatron_linear_attention.hpp"
#include "sim/model/megatron/megatron_other_models.hpp"
#include "sim/model/megatron/script_call.hpp"
#include "sim/model/megatron/tokenizers.hpp"

namespace moesim::model {
namespace {

using nlohmann::json;

// Taken by gated units alone (megatron/core/transformer/mlp.py, experts.py: glu()).
constexpr const char* clamp_argument = "activation-func-clamp-value";

bool is_gated(const MegatronArguments& arguments) {
  return arguments.has("swiglu") || arguments.has("quick-geglu");
}

std::int64_t needed(const MegatronArguments& arguments, const char* name) {
  if (const auto value = arguments.size(name)) return *value;
  if (const auto file = arguments.known_text("yaml-cfg")) {
    arguments.fail("yaml-cfg", fmt::format("--{} is missing, and {} is not read: give it in the "
                                           "place of the script, with --gpus",
                                           name, *file));
  }
  if (arguments.has(name)) return 1;  // not known, which is refused with all that are not
  throw UsageError(
      fmt::format("{}: --{} is missing: add it, or give --model", arguments.name(), name));
}

// MoE layers: every n-th from the first on, or those of a list.
std::vector<bool> layers_with_experts(const MegatronArguments& arguments, std::int64_t layers) {
  constexpr const char* name = "moe-layer-freq";
  const std::string text = layer_words(arguments, name);
  const auto every = parse_number<std::int64_t>(text);
  if (!every || *every < 1) return listed_layers(arguments, name, text, layers);
  std::vector<bool> found;
  for (std::int64_t layer = 0; layer < layers; ++layer) found.push_back(layer % *every == 0);
  return found;
}

std::string router_of(const MegatronArguments& arguments) {
  const std::int64_t groups = arguments.size("moe-router-num-groups").value_or(1);
  const std::int64_t experts = arguments.size("num-experts").value_or(groups);
  if (groups < 1 || experts % groups != 0) {
    arguments.fail(
        "moe-router-num-groups",
        fmt::format("{} experts (--num-experts) do not divide into {} groups", experts, groups));
  }
  const std::int64_t kept_groups = arguments.size("moe-router-group-topk").value_or(1);
  const std::int64_t chosen = arguments.size("moe-router-topk").value_or(2);
  if (kept_groups < 1 || kept_groups > groups || chosen > experts / groups * kept_groups) {
    arguments.fail(
        "moe-router-group-topk",
        fmt::format("{} of {} groups (--moe-router-num-groups) of {} experts (--num-experts) "
                    "cannot be kept by a token that chooses {} (--moe-router-topk)",
                    kept_groups, groups, experts, chosen));
  }
  const std::string kept = fmt::format("{}:{}", groups, kept_groups);
  if (arguments.has("moe-router-enable-expert-bias")) {
    return groups > 1 ? "bias-balanced+groups:" + kept : "bias-balanced";
  }
  return groups > 1 ? "group-limited:" + kept : "dropless";
}

void add_experts(const MegatronArguments& arguments, json& model) {
  const std::optional<std::int64_t> experts = arguments.size("num-experts");
  if (!experts) return;
  const auto layers = model["layers"].get<std::int64_t>();
  const std::vector<bool> with = layers_with_experts(arguments, layers);
  const auto first = std::find(with.begin(), with.end(), true) - with.begin();
  // The last of each group of `every` layers has experts.
  const auto next =
      std::find(with.begin() + std::min<std::ptrdiff_t>(first + 1, layers), with.end(), true) -
      with.begin();
  const std::int64_t every = next < layers ? next - first : 1;
  for (std::int64_t layer = first; layer < layers; ++layer) {
    if (with[static_cast<std::size_t>(layer)] == ((layer - first) % every == 0)) continue;
    arguments.fail("moe-layer-freq", "only dense layers and then every n-th layer are known");
  }
  json& moe = model["moe"];
  moe["experts"] = *experts;
  moe["top_k"] = arguments.size("moe-router-topk").value_or(2);
  moe["router"] = router_of(arguments);
  moe["expert_ffn"] =
      arguments.size("moe-ffn-hidden-size").value_or(model["ffn"].get<std::int64_t>());
  moe["shared_ffn"] = arguments.count("moe-shared-expert-intermediate-size").value_or(0);
  moe["first_layer"] = std::max<std::int64_t>(0, first + 1 - every);
  moe["every"] = every;
  moe["biased"] = !arguments.has("disable-bias-linear");
  moe["clamped"] = model["gated"].get<bool>() && arguments.has(clamp_argument);
  if (first == 0 && every == 1) model.erase("ffn");
  const auto counted = std::count(with.begin(), with.end(), true);
  const std::int64_t begin = moe["first_layer"].get<std::int64_t>();
  if (counted != (layers - begin) / every) {
    arguments.fail("moe-layer-freq", fmt::format("{} MoE layers, every {}th of {}, leave a rest",
                                                 counted, every, layers - begin));
  }
}

void add_attention(const MegatronArguments& arguments, json& model) {
  const std::int64_t heads = needed(arguments, "num-attention-heads");
  const auto hidden = model["hidden"].get<std::int64_t>();
  model["heads"] = heads;
  model["kv_heads"] = arguments.has("group-query-attention")
                          ? arguments.size("num-query-groups").value_or(1)
                          : heads;
  if (!arguments.has("multi-latent-attention")) {
    model["head_dim"] = arguments.size("kv-channels").value_or(hidden / heads);
    model["query_key_norm"] = arguments.has("qk-layernorm");
    return;
  }
  // Megatron's defaults are those of MLATransformerConfig.
  model["kv_heads"] = heads;
  model["head_dim"] = arguments.size("qk-head-dim").value_or(128);
  model["latent"] = {{"query_rank", arguments.count("q-lora-rank").value_or(0)},
                     {"kv_rank", arguments.size("kv-lora-rank").value_or(32)},
                     {"rope_dim", arguments.size("qk-pos-emb-head-dim").value_or(64)},
                     {"value_dim", arguments.size("v-head-dim").value_or(128)}};
  // The low-rank ones are normed, with --qk-layernorm or without.
}

void add_window(const MegatronArguments& arguments, json& model) {
  const std::optional<std::string> text = arguments.text("window-size");
  if (!text) return;
  std::string digits;
  for (const char letter : *text) {
    if (std::isdigit(static_cast<unsigned char>(letter)) != 0) {
      digits += letter;
    } else if (!digits.empty()) {
      break;
    }
  }
  const auto tokens = parse_number<std::int64_t>(digits);
  if (!tokens) arguments.fail("window-size", fmt::format("'{}' names no tokens", *text));
  model["window"] = {{"tokens", std::max<std::int64_t>(1, *tokens)},
                     {"full_every", arguments.count("window-attn-skip-freq").value_or(0)}};
}

std::int64_t vocabulary_of(const MegatronArguments& arguments) {
  if (const auto typed = arguments.size("vocab-size")) return *typed;
  if (const auto known = known_vocabulary(arguments)) return known->tokens;
  const char* const written = is_yaml_file(arguments.name()) ? "vocab_size: N" : "--vocab-size N";
  throw UsageError(
      fmt::format("{0}: --vocab-size is missing (the tokenizer decides it, which is not read): add "
                  "{1} to {0}, or give --model",
                  arguments.name(), written));
}

constexpr const char* of_model[] = {clamp_argument,
                                    "attention-output-gate",
                                    "disable-bias-linear",
                                    "ffn-hidden-size",
                                    "group-query-attention",
                                    "hidden-size",
                                    "kv-channels",
                                    "kv-lora-rank",
                                    "linear-conv-kernel-dim",
                                    "linear-key-head-dim",
                                    "linear-num-key-heads",
                                    "linear-num-value-heads",
                                    "linear-value-head-dim",
                                    "make-vocab-size-divisible-by",
                                    "moe-ffn-hidden-size",
                                    "moe-layer-freq",
                                    "moe-router-enable-expert-bias",
                                    "moe-router-group-topk",
                                    "moe-router-num-groups",
                                    "moe-router-topk",
                                    "moe-shared-expert-intermediate-size",
                                    "mtp-num-layers",
                                    "multi-latent-attention",
                                    "num-attention-heads",
                                    "num-experts",
                                    "num-layers",
                                    "num-query-groups",
                                    "q-lora-rank",
                                    "qk-head-dim",
                                    "qk-layernorm",
                                    "qk-pos-emb-head-dim",
                                    "quick-geglu",
                                    "swiglu",
                                    "untie-embeddings-and-output-weights",
                                    "v-head-dim",
                                    "vocab-size",
                                    "window-attn-skip-freq",
                                    "window-size"};

}  // namespace

std::string clamp_note(const MegatronArguments& arguments) {
  if (!arguments.has(clamp_argument) || is_gated(arguments)) return "";
  return fmt::format(
      "note: {}: --{} has no effect: Megatron-LM clamps in gated units alone (--swiglu, "
      "--quick-geglu)",
      arguments.name(), clamp_argument);
}

std::string vocabulary_note(const MegatronArguments& arguments) {
  if (arguments.has("vocab-size")) return "";
  const auto known = known_vocabulary(arguments);
  if (!known) return "";
  return fmt::format("note: {}: no --vocab-size: {} is taken, by {} ({})", arguments.name(),
                     known->tokens, known->tokenizer, known->source);
}

bool tells_model(const MegatronArguments& arguments) {
  return std::any_of(std::begin(of_model), std::end(of_model),
                     [&](const char* argument) { return arguments.has(argument); });
}

void spare_model_arguments(MegatronArguments& arguments) {
  for (const std::string_view argument : of_model) {
    if (argument != "mtp-num-layers") arguments.spare(argument);  // of the stages too
  }
  arguments.spare("moe-router-score-function");
}

void mark_model_arguments(const MegatronArguments& arguments) {
  for (const char* argument : of_model) arguments.has(argument);
  mark_other_models(arguments);
}

Model megatron_model(const MegatronArguments& arguments) {
  mark_model_arguments(arguments);  // some have no effect beside others
  refuse_other_models(arguments);
  json model = {{"format", "moesim model 1"},
                {"name", std::filesystem::path(arguments.name()).stem().string()},
                {"source", fmt::format("Megatron-LM arguments in {}", arguments.name())}};
  constexpr std::int64_t most_layers = 65535;  // model.schema
  const std::int64_t layers = needed(arguments, "num-layers");
  if (layers > most_layers) {
    arguments.fail("num-layers", fmt::format("{} is too large: at most {}", layers, most_layers));
  }
  model["layers"] = layers;
  const std::int64_t hidden = needed(arguments, "hidden-size");
  model["hidden"] = hidden;
  model["gated"] = is_gated(arguments);
  // Megatron rounds an inner size of its own to 64 (arguments.py).
  const std::int64_t usual = arguments.has("swiglu") ? hidden * 8 / 3 / 64 * 64 : 4 * hidden;
  model["ffn"] = arguments.size("ffn-hidden-size").value_or(usual);
  add_attention(arguments, model);
  add_window(arguments, model);
  if (arguments.has("attention-output-gate")) model["output_gate"] = true;
  if (has_linear_attention(arguments)) model["linear"] = linear_attention(arguments, layers);
  const std::int64_t tokens = vocabulary_of(arguments);
  // Of ranks that are not known, as where others are typed, the least padding.
  constexpr const char* ranks = "tensor-model-parallel-size";
  const std::int64_t multiple =
      arguments.size("make-vocab-size-divisible-by").value_or(128) *
      (arguments.known_text(ranks) ? arguments.size(ranks).value_or(1) : 1);
  model["vocabulary"] = (tokens + multiple - 1) / multiple * multiple;
  model["tied_embedding"] = !arguments.has("untie-embeddings-and-output-weights");
  const bool has_length = arguments.known_text("seq-length").has_value();
  model["sequence_length"] = has_length ? needed(arguments, "seq-length") : 1;
  model["mtp_depths"] = arguments.count("mtp-num-layers").value_or(0);
  add_experts(arguments, model);
  Model made = Model::read(Document::parse(json_text(model), arguments.name()));
  if (!has_length) made.sequence_length = 0;
  return made;
}

std::int64_t usual_sequence_length(const Model& model) {
  if (model.sequence_length > 0) return model.sequence_length;
  throw UsageError(fmt::format(
      "{}: --seq-length is missing, or not known: add it, or give --sequence-length", model.name));
}

}  // namespace moesim::model
