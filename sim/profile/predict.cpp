#include "sim/profile/predict.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "sim/base/contains.hpp"
#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/missing_parameter.hpp"
#include "sim/profile/scaled_estimate.hpp"
#include "sim/profile/unfused_ffn.hpp"

namespace moesim::profile {

namespace {

using Params = std::map<std::string, std::string>;

// The usual one first.
const std::vector<std::string> passes{"forward", "backward"};
const std::vector<std::string> expert_kernels{"fused", "separate", "batched"};
const std::vector<std::string> data_types{"bf16",      "fp16",  "fp32",  "tf32",  "fp8",
                                          "fp8_block", "mxfp8", "nvfp4", "mxfp4", "int8"};

std::vector<std::string> memory_kernels() {
  std::vector<std::string> kernels;
  for (const auto& known : memory_kernel_names) kernels.emplace_back(known.name);
  return kernels;
}

// A whole number of at least 1.
std::int64_t count(const PredictedOperation& op, const Params& params, const std::string& name) {
  const std::string& text = params.at(name);
  const std::optional<std::int64_t> value = parse_number<std::int64_t>(text);
  if (!value || *value < 1) {
    throw UsageError(
        fmt::format("{}: {} '{}': expected a whole number of at least 1", op.name, name, text));
  }
  return *value;
}

double size(const PredictedOperation& op, const Params& params) {
  return static_cast<double>(parse_bytes(params.at("bytes"), op.name + ": bytes").count);
}

// The one of `choices` that `params` names, or the first.
std::string choice(const PredictedOperation& op, const Params& params, const std::string& name,
                   const std::vector<std::string>& choices) {
  const auto found = params.find(name);
  if (found == params.end() || found->second.empty()) return choices.front();
  if (contains(choices, found->second)) return found->second;
  throw UsageError(fmt::format("{}: {} '{}': expected {}{}", op.name, name, found->second,
                               fmt::join(choices, ", "), suggestion(found->second, choices)));
}

Estimate predict_memory(const Profile& profile, const PredictedOperation& op,
                        const Params& params) {
  const std::string kernel = choice(op, params, "kernel", memory_kernels());
  return profile.memory(size(op, params), value_in(memory_kernel_names, kernel, op.name));
}

Estimate predict_attention(const Profile& profile, const PredictedOperation& op,
                           const Params& params, const std::string& dtype) {
  const bool backward = choice(op, params, "pass", passes) == "backward";
  return profile.attention(
      {count(op, params, "batch"), count(op, params, "sequence"), count(op, params, "heads"),
       count(op, params, "kv-heads"), count(op, params, "head-dim")},
      backward, dtype);
}

Estimate predict_latent(const Profile& profile, const PredictedOperation& op, const Params& params,
                        const std::string& dtype) {
  const bool backward = choice(op, params, "pass", passes) == "backward";
  return profile.latent_attention(count(op, params, "batch"), count(op, params, "sequence"),
                                  count(op, params, "heads"), backward, dtype);
}

// "512,0,80", also with ; or spaces between: zeros allowed.
std::vector<std::int64_t> load_of(const PredictedOperation& op, const std::string& text) {
  std::string list = text;
  for (char& letter : list) {
    if (letter == ';' || letter == ' ') letter = ',';
  }
  std::vector<std::int64_t> load;
  for (const std::string_view part : split(list, ',')) {
    load.push_back(parse_whole(fmt::format("{}: rows-per-expert", op.name), part, 0,
                               std::numeric_limits<std::int32_t>::max()));
  }
  return load;
}

// Each expert's rows: as listed, else spread evenly.
std::vector<std::int64_t> expert_load(const PredictedOperation& op, const Params& params) {
  const auto listed = params.find("rows-per-expert");
  if (listed == params.end()) {
    const std::int64_t rows = count(op, params, "rows"), experts = count(op, params, "experts");
    std::vector<std::int64_t> load(static_cast<std::size_t>(experts), rows / experts);
    for (std::int64_t expert = 0; expert < rows % experts; ++expert) {
      ++load[static_cast<std::size_t>(expert)];
    }
    return load;
  }
  std::vector<std::int64_t> load = load_of(op, listed->second);
  const auto agrees = [&](const char* name, std::int64_t listed_count) {
    if (params.count(name) == 0 || count(op, params, name) == listed_count) return;
    throw NoAnswer(fmt::format("{}: {} {}, but rows-per-expert has {}: leave {} out", op.name, name,
                               params.at(name), listed_count, name));
  };
  agrees("experts", static_cast<std::int64_t>(load.size()));
  agrees("rows", std::accumulate(load.begin(), load.end(), std::int64_t{0}));
  return load;
}

Estimate predict_expert_ffn(const Profile& profile, const PredictedOperation& op,
                            const Params& params, const std::string& dtype) {
  const std::int64_t hidden = count(op, params, "hidden"), ffn = count(op, params, "ffn");
  const std::string kernel = choice(op, params, "kernel", expert_kernels);
  if (kernel != "fused") {
    if (dtype != default_data_type) {
      throw NoAnswer(fmt::format("{}: {} kernels are priced in {} alone: leave dtype out", op.name,
                                 kernel, default_data_type));
    }
    const auto price = kernel == "separate" ? separate_expert_ffn : batched_expert_ffn;
    return price(profile, expert_load(op, params), hidden, ffn);
  }
  if (params.count("rows-per-expert") != 0) {
    return profile.expert_ffn(expert_load(op, params), hidden, ffn, dtype);
  }
  return profile.expert_ffn(count(op, params, "rows"), hidden, ffn, count(op, params, "experts"),
                            dtype);
}

// The data type that a question names, as documents name it; the first of the profile's curves for
// what is never done in bf16.
std::string data_type_of(const Profile& profile, const PredictedOperation& op,
                         const Params& params) {
  const auto named = params.find("dtype");
  const std::vector<std::string> known = profile.data_types(op.name);
  if (named == params.end() || named->second.empty()) {
    return op.name == "quantize" && !known.empty() ? known.front() : default_data_type;
  }
  static const std::vector<std::pair<std::string, std::string>> others{
      {"bfloat16", "bf16"}, {"float16", "fp16"}, {"half", "fp16"},          {"float32", "fp32"},
      {"float", "fp32"},    {"float8", "fp8"},   {"fp8-block", "fp8_block"}};
  std::string type = named->second;
  for (const auto& [other, own] : others) {
    if (type == other) type = own;
  }
  if (!contains(data_types, type) && !contains(known, type)) {
    throw UsageError(fmt::format("{}: dtype '{}': expected one of {}{}", op.name, named->second,
                                 fmt::join(data_types, ", "),
                                 suggestion(named->second, data_types)));
  }
  return type;
}

Estimate predict_collective(const Profile& profile, Collective kind, const PredictedOperation& op,
                            const Params& params) {
  const std::int64_t gpus = count(op, params, "gpus");
  if (gpus > std::numeric_limits<int>::max()) {
    throw NoAnswer(fmt::format("{}: gpus {}: too many", op.name, gpus));
  }
  const auto nccl = params.find("nccl");
  if (nccl == params.end() || nccl->second.empty()) {
    return profile.collective(kind, static_cast<int>(gpus), size(op, params));
  }
  return profile.collective(kind, static_cast<int>(gpus), size(op, params), nccl->second);
}

void check_names(const PredictedOperation& op, const Params& params) {
  std::vector<std::string> known = op.parameters;
  known.insert(known.end(), op.optional.begin(), op.optional.end());
  for (const auto& [name, value] : params) {
    if (contains(known, name)) continue;
    throw UnknownParameter(op.name, name, known);
  }
  const bool by_expert = params.count("rows-per-expert") != 0;
  for (const std::string& name : op.parameters) {
    const auto found = params.find(name);
    if (found != params.end() && !found->second.empty()) continue;
    if (by_expert && (name == "rows" || name == "experts")) continue;
    throw MissingParameter(op.name, name, op.parameters);
  }
}

Estimate by_curve(const Profile& profile, const PredictedOperation& op, const Params& params) {
  const std::string& name = op.name;
  const std::string dtype = data_type_of(profile, op, params);
  if (name == "dispatch" || params.count("dispatcher") != 0) {
    throw UsageError(
        fmt::format("{}: a dispatcher exchanges over a cluster: ask moesim predict", name));
  }
  const auto number = [&](const char* key) { return count(op, params, key); };
  if (name == "gemm") return profile.gemm(number("m"), number("n"), number("k"), dtype);
  if (name == "attention") return predict_attention(profile, op, params, dtype);
  if (name == "latent-attention") return predict_latent(profile, op, params, dtype);
  if (name == "quantize") return profile.quantize(number("m"), number("k"), dtype);
  if (name == "memory") return predict_memory(profile, op, params);
  if (name == "permute") return profile.permute(number("tokens"), number("hidden"), number("k"));
  if (name == "combine") return profile.combine(number("tokens"), number("hidden"), number("k"));
  if (name == "expert-ffn") return predict_expert_ffn(profile, op, params, dtype);
  return predict_collective(profile, value_in(collective_names, name, "operation"), op, params);
}

// What is a sum of kernels of several classes.
bool holds_multipliers(const PredictedOperation& op, const Params& params) {
  const auto kernel = params.find("kernel");
  return op.name == "expert-ffn" && kernel != params.end() && !kernel->second.empty() &&
         kernel->second != "fused";
}

}  // namespace

const std::vector<PredictedOperation>& operations() {
  static const std::vector<PredictedOperation> all = {
      {"gemm", {"m", "n", "k"}, {"dtype"}, "gemm"},
      {"attention",
       {"batch", "sequence", "heads", "kv-heads", "head-dim"},
       {"pass", "dtype"},
       "attention"},
      {"latent-attention", {"batch", "sequence", "heads"}, {"pass", "dtype"}, "attention"},
      {"quantize", {"m", "k"}, {"dtype"}, "memory"},
      {"memory", {"bytes"}, {"kernel"}, "memory"},
      {"permute", {"tokens", "hidden", "k"}, {}, "memory"},
      {"dispatch",
       {"dispatcher", "tokens", "hidden", "k", "experts", "gpus"},
       {"sms", "row-format", "node-limit", "cluster", "transport"},
       "exchange"},
      {"combine",
       {"tokens", "hidden", "k"},
       {"dispatcher", "experts", "gpus", "sms", "node-limit", "cluster", "transport"},
       "memory"},
      {"expert-ffn",
       {"rows", "hidden", "ffn", "experts"},
       {"rows-per-expert", "kernel", "dtype"},
       "gemm"},
      {"all-to-all", {"gpus", "bytes"}, {"nccl"}, "exchange"},
      {"all-reduce", {"gpus", "bytes"}, {"nccl"}, "exchange"},
      {"all-gather", {"gpus", "bytes"}, {"nccl"}, "exchange"},
      {"reduce-scatter", {"gpus", "bytes"}, {"nccl"}, "exchange"},
  };
  return all;
}

const PredictedOperation& find_operation(const std::string& name) {
  std::vector<std::string> names;
  for (const PredictedOperation& op : operations()) {
    if (op.name == name) return op;
    names.push_back(op.name);
  }
  throw UsageError(fmt::format("unknown operation '{}'{}; operations: {}", name,
                               suggestion(name, names), fmt::join(names, ", ")));
}

std::vector<std::string> choices_of(const std::string& parameter) {
  if (parameter == "pass") return passes;
  if (parameter == "dtype") return data_types;
  if (parameter != "kernel") return {};
  std::vector<std::string> kernels = memory_kernels();
  kernels.insert(kernels.end(), expert_kernels.begin(), expert_kernels.end());
  return kernels;
}

Estimate predict(const Profile& profile, const std::string& name, const Params& params) {
  const PredictedOperation& op = find_operation(name);
  check_names(op, params);
  const Estimate estimate = by_curve(profile, op, params);
  return holds_multipliers(op, params)
             ? estimate
             : scaled(estimate, profile.software_multiplier(op.kernel_class));
}

}  // namespace moesim::profile
