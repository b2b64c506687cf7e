#include "sim/model/memory/recompute.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/repeated.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/model/training_work.hpp"

namespace moesim::model {
namespace {

Recompute parse_full(const std::vector<std::string_view>& parts, const std::string& where) {
  Recompute recompute;
  recompute.full = FullRecompute::uniform;
  if (parts.size() == 1) return recompute;
  if (parts.size() != 3 || (parts[1] != "uniform" && parts[1] != "block")) {
    throw UsageError(where +
                     ": full takes a method and a number of layers: full:uniform:N or "
                     "full:block:N");
  }
  if (parts[1] == "block") recompute.full = FullRecompute::block;
  recompute.layers = static_cast<int>(parse_whole(where, parts[2], 1, 1 << 16));
  return recompute;
}

void add_module(std::string_view text, const std::string& where, Recompute& recompute) {
  std::vector<std::string> known;
  for (const auto& module : recompute_names) {
    if (text == module.name) return recompute.add(module.value);
    known.emplace_back(module.name);
  }
  if (text == "none" || text == "full" || text.starts_with("full:")) {
    throw UsageError(fmt::format("{}: '{}' stands alone, not in a list of modules ({})", where,
                                 text, fmt::join(known, ", ")));
  }
  throw UsageError(
      fmt::format("{}: unknown value '{}'{}; choose from none, full, full:uniform:N, "
                  "full:block:N, or one or more of {}",
                  where, text, suggestion(std::string(text), known), fmt::join(known, ", ")));
}

// Queries, and keys and values, out of their bottlenecks.
double up_projection_work(const Model& model) {
  double work = 0;
  for (const Projection& projection : model.attention_projections()) {
    const bool up =
        projection.name == "q" || projection.name == "q_up" || projection.name == "kv_up";
    if (up) work += 2 * static_cast<double>(projection.n * projection.k);
  }
  return work;
}

RecomputeWork whole_layer(const LayerWork& work, bool moe, double rows) {
  RecomputeWork again;
  again.gemm_flops = work.total(rows) - work.core_attention - work.linear_attention;
  again.core_attention_flops = work.core_attention + work.linear_attention;
  again.norms = again.context_exchange = again.tensor_exchange = true;
  again.expert_activation = again.dispatch = moe;
  return again;
}

}  // namespace

Recompute parse_recompute(const std::string& text, const std::string& where) {
  if (text == "none") return {};
  if (text == "full" || text.starts_with("full:")) return parse_full(split(text, ':'), where);
  Recompute recompute;
  const std::vector<std::string_view> modules = split(text, ',');
  for (const std::string_view module : modules) add_module(module, where, recompute);
  refuse_repeated(modules, where);
  return recompute;
}

std::string name_of(const Recompute& recompute) {
  if (recompute.full == FullRecompute::block) return fmt::format("full:block:{}", recompute.layers);
  if (recompute.full == FullRecompute::uniform) {
    return recompute.layers == 1 ? "full" : fmt::format("full:uniform:{}", recompute.layers);
  }
  return names_of_bits(recompute_names, recompute.modules);
}

RecomputeWork recompute_work(const Model& model, int layer, const Recompute& recompute,
                             double length, double rows) {
  const LayerWork work = layer_work(model, layer, length);
  const bool moe = model.is_moe_layer(layer);
  if (recompute.full != FullRecompute::none) return whole_layer(work, moe, rows);
  RecomputeWork again;
  again.norms = recompute.has(RecomputeModule::layernorm);
  if (recompute.has(RecomputeModule::core_attn)) {
    again.core_attention_flops = work.core_attention;
    again.context_exchange = !model.has_linear_attention(layer);
  }
  if (model.latent && recompute.has(RecomputeModule::mla_up_proj)) {
    again.gemm_flops += up_projection_work(model);
  }
  if (!moe) {
    if (!recompute.has(RecomputeModule::mlp)) return again;
    again.gemm_flops += work.dense_ffn;
    again.tensor_exchange = true;
    return again;
  }
  if (recompute.has(RecomputeModule::moe)) {
    again.gemm_flops += work.router + work.shared_experts + rows * work.expert_row;
    again.dispatch = again.expert_activation = true;
    again.tensor_exchange = model.moe->shared_ffn > 0;
    return again;
  }
  again.expert_activation = recompute.has(RecomputeModule::moe_act);
  if (model.moe->shared_ffn > 0 && recompute.has(RecomputeModule::shared_experts)) {
    again.gemm_flops += work.shared_experts;
    again.tensor_exchange = true;
  }
  return again;
}

}  // namespace moesim::model
