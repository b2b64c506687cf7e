#include "sim/profile/predict.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"

namespace moesim::profile {

namespace {

using Params = std::map<std::string, std::string>;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
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
  std::vector<std::string> kernels;
  for (const auto& known : memory_kernel_names) kernels.emplace_back(known.name);
  const std::string kernel = choice(op, params, "kernel", kernels);
  return profile.memory(size(op, params), value_in(memory_kernel_names, kernel, op.name));
}

Estimate predict_attention(const Profile& profile, const PredictedOperation& op,
                           const Params& params) {
  const bool backward = choice(op, params, "pass", {"forward", "backward"}) == "backward";
  return profile.attention(count(op, params, "batch"), count(op, params, "sequence"),
                           count(op, params, "heads"), count(op, params, "kv-heads"),
                           count(op, params, "head-dim"), backward);
}

Estimate predict_collective(const Profile& profile, Collective kind, const PredictedOperation& op,
                            const Params& params) {
  const std::int64_t gpus = count(op, params, "gpus");
  if (gpus > std::numeric_limits<int>::max()) {
    throw UsageError(fmt::format("{}: gpus {}: too many", op.name, gpus));
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
    throw UsageError(fmt::format("{}: unknown parameter '{}'{}; it takes {}", op.name, name,
                                 suggestion(name, known), fmt::join(known, ", ")));
  }
  for (const std::string& name : op.parameters) {
    const auto found = params.find(name);
    if (found != params.end() && !found->second.empty()) continue;
    throw UsageError(fmt::format("{}: {} is missing; it needs {}", op.name, name,
                                 fmt::join(op.parameters, ", ")));
  }
}

}  // namespace

const std::vector<PredictedOperation>& operations() {
  static const std::vector<PredictedOperation> all = {
      {"gemm", {"m", "n", "k"}, {}},
      {"attention", {"batch", "sequence", "heads", "kv-heads", "head-dim"}, {"pass"}},
      {"memory", {"bytes"}, {"kernel"}},
      {"permute", {"tokens", "hidden", "k"}, {}},
      {"combine", {"tokens", "hidden", "k"}, {}},
      {"expert-ffn", {"rows", "hidden", "ffn", "experts"}, {}},
      {"all-to-all", {"gpus", "bytes"}, {"nccl"}},
      {"all-reduce", {"gpus", "bytes"}, {"nccl"}},
      {"all-gather", {"gpus", "bytes"}, {"nccl"}},
      {"reduce-scatter", {"gpus", "bytes"}, {"nccl"}},
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

Estimate predict(const Profile& profile, const std::string& name, const Params& params) {
  const PredictedOperation& op = find_operation(name);
  check_names(op, params);
  const auto number = [&](const char* key) { return count(op, params, key); };
  if (name == "gemm") return profile.gemm(number("m"), number("n"), number("k"));
  if (name == "attention") return predict_attention(profile, op, params);
  if (name == "memory") return predict_memory(profile, op, params);
  if (name == "permute") return profile.permute(number("tokens"), number("hidden"), number("k"));
  if (name == "combine") return profile.combine(number("tokens"), number("hidden"), number("k"));
  if (name == "expert-ffn") {
    return profile.expert_ffn(number("rows"), number("hidden"), number("ffn"), number("experts"));
  }
  return predict_collective(profile, value_in(collective_names, name, "operation"), op, params);
}

}  // namespace moesim::profile
