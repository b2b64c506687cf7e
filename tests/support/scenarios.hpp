#pragma once

#include <memory>
#include <string>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::support {

// 16 A100s in groups of 8, top-2, 4,096 tokens per GPU; `layers` of the model's, or all for 0.
inline scenario::Scenario scenario_of(const std::string& model_name, int layers) {
  scenario::Scenario scenario;
  scenario.profile = std::make_shared<profile::Profile>(profile::Profile::load("a100-sxm-80gb"));
  auto model = model::Model::load(model_name);
  if (layers > 0) model.layers = layers;
  scenario.model = std::make_shared<model::Model>(model);
  scenario.cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load("dgx-a100"));
  scenario.gpus = 16;
  scenario.router = routing::parse_router("top2", 0);
  scenario.sequence_length = 1024;
  scenario.micro_batch = 4;
  scenario.tokens_per_gpu = 4096;
  return scenario;
}

// A forward pass small enough to follow by hand: four layers, every second one MoE with 8 experts.
inline scenario::Scenario small_prefill() {
  scenario::Scenario scenario = scenario_of("llama2-7b-moe8", 4);
  scenario.replicas = 3;
  scenario.mode = scenario::Mode::prefill;
  return scenario;
}

// `rows` from every GPU to every expert, in every layer.
inline routing::ReplicaRouting equal_rows(const scenario::Scenario& scenario, std::int32_t rows) {
  routing::ReplicaRouting routing;
  routing::LayerRouting layer;
  layer.capacity = rows;
  layer.exchanged_capacity = rows;
  layer.kept_rows.assign(static_cast<std::size_t>(scenario.gpus * scenario.experts), rows);
  layer.ir_rows.assign(static_cast<std::size_t>(scenario.gpus), 0);
  routing.layers.assign(static_cast<std::size_t>(scenario.model->moe_layers()), layer);
  return routing;
}

}  // namespace moesim::support
