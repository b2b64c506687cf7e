#include "sim/step/program/gpu_parameters.hpp"

namespace moesim::step {

double GpuParameters::layer_dense(int layer) const {
  const model::Model& model = *scenario_.model;
  const std::int64_t attention = model.attention_blocks(layer) * model.attention_parameters();
  if (!scenario_.has_moe() || !model.is_moe_layer(layer)) {
    return static_cast<double>(attention + model.ffn_parameters(model.ffn));
  }
  return static_cast<double>(attention + model.ffn_parameters(model.moe->shared_ffn) +
                             model.hidden * scenario_.gate_outputs());
}

double GpuParameters::layer_expert(int layer) const {
  if (!scenario_.has_moe() || !scenario_.model->is_moe_layer(layer)) return 0;
  return static_cast<double>(scenario_.model->expert_parameters()) * scenario_.experts /
         scenario_.expert_parallel;
}

double GpuParameters::dense() const {
  if (!scenario_.has_moe()) return static_cast<double>(scenario_.model->dense_parameters(0));
  // The model counts a gate of E columns.
  const model::Model& model = *scenario_.model;
  const std::int64_t more_columns = scenario_.gate_outputs() - scenario_.experts;
  return static_cast<double>(model.dense_parameters(scenario_.experts) +
                             model.moe_layers() * model.hidden * more_columns);
}

double GpuParameters::outer() const {
  double parameters = dense();
  for (int layer = 0; layer < scenario_.model->layers; ++layer) parameters -= layer_dense(layer);
  return parameters;
}

double GpuParameters::expert() const {
  double parameters = 0;
  for (int layer = 0; layer < scenario_.model->layers; ++layer) parameters += layer_expert(layer);
  return parameters;
}

double GpuParameters::shard() const {
  const double expert_copies = static_cast<double>(scenario_.gpus) / scenario_.expert_parallel;
  return dense() / scenario_.gpus + expert() / expert_copies;
}

}  // namespace moesim::step
