#include "sim/model/training_work.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/error.hpp"

namespace moesim::model {
namespace {

double matrix_work(std::int64_t parameters) { return 2 * static_cast<double>(parameters); }

double work_per_key(const Model& model) {
  return matrix_work(model.heads * (model.query_key_dim() + model.value_dim()));
}

// Blocks of `chunk` tokens that attend inside themselves, and a rest.
double keys_in_chunks(double chunk, double length) {
  const double whole = std::floor(length / chunk);
  const double rest = length - whole * chunk;
  return (whole * chunk * chunk + rest * rest) / (2 * length);
}

}  // namespace

double keys_seen(const Model& model, int layer, double length) {
  if (!model.is_causal(layer)) return length;
  if (!model.has_window(layer)) return length / 2;
  const auto width = static_cast<double>(model.window->tokens);
  if (width >= length) return length / 2;
  if (model.window->chunked) return keys_in_chunks(width, length);
  return width - width * (width - 1) / (2 * length);
}

LayerWork layer_work(const Model& model, int layer, double length) {
  LayerWork work;
  if (model.has_linear_attention(layer)) {
    for (const Projection& projection : model.linear_projections()) {
      work.projections += matrix_work(projection.n * projection.k);
    }
    work.linear_attention = model.linear->model_flops();
  } else {
    work.projections = model.attention_blocks(layer) * matrix_work(model.attention_parameters());
    const double cross_keys = model.cross_attends(layer) ? length : 0;
    work.core_attention = work_per_key(model) * (keys_seen(model, layer, length) + cross_keys);
  }
  if (!model.is_moe_layer(layer)) {
    work.dense_ffn = matrix_work(model.ffn_parameters(model.ffn));
    return work;
  }
  work.router = matrix_work(model.hidden * model.moe->experts);
  work.shared_experts = matrix_work(model.ffn_parameters(model.moe->shared_ffn));
  work.expert_row = matrix_work(model.expert_parameters());
  return work;
}

double head_work(const Model& model) { return matrix_work(model.hidden * model.vocabulary); }

double mtp_projection_work(const Model& model) {
  return matrix_work(2 * model.hidden * model.hidden);
}

ModelFlops model_flops(const Model& model, double length, double choices, int mtp_depths) {
  if (length < 1 || choices < 0 || mtp_depths < 0) {
    throw UsageError(
        fmt::format("model FLOPs of {} tokens, {} experts per token, {} prediction "
                    "depths: out of range",
                    length, choices, mtp_depths));
  }
  if (model.moe && choices == 0 && !model.has_dense_counterpart()) {
    throw UsageError(
        fmt::format("model FLOPs of {} without experts: it names no dense ffn", model.name));
  }
  ModelFlops forward;
  const auto add_layer = [&](int layer) {
    LayerWork work = layer_work(model, layer, length);
    work.router = 0;
    if (choices == 0) work.shared_experts = 0;
    forward.total += work.total(choices);
    if (choices == 0 && model.is_moe_layer(layer)) {
      forward.total += matrix_work(model.ffn_parameters(model.ffn));
    }
    forward.core_attention += work.core_attention;
  };
  for (int layer = 0; layer < model.layers; ++layer) add_layer(layer);
  for (int depth = 0; depth < mtp_depths; ++depth) {
    add_layer(model.layers - 1);
    forward.total += mtp_projection_work(model);
  }
  forward.total += (1 + mtp_depths) * head_work(model);
  return {3 * forward.total, 3 * forward.core_attention};
}

}  // namespace moesim::model
