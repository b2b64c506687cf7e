#pragma once

#include <memory>

#include "sim/routing/routers/router_name.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::training {

// On H100 nodes, with sequences of 4,096 tokens and a host that costs nothing.
inline TrainingJob job_of(const char* model, int gpus, int pipeline, int expert,
                          int micro_batches) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load(model));
  made.layout.sizes.gpus = gpus;
  made.layout.sizes.pipeline = pipeline;
  made.layout.sizes.expert = expert;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = std::int64_t{micro_batches} * made.layout.sizes.data();
  made.host = {0, 0, 0};
  return made;
}

// The same with one layer.
inline TrainingJob one_layer_of(TrainingJob job) {
  model::Model small = *job.model;
  small.layers = 1;
  job.model = std::make_shared<const model::Model>(small);
  return job;
}

inline constexpr RoutingDraws per_micro_batch = RoutingDraws::per_micro_batch;

// Routing drawn for 8 experts per token. `capacity_factor` by the convention of libraries;
// nullptr: nothing is dropped.
inline DrawnRouting drawn(const char* router, const char* capacity_factor, const char* scores,
                          RoutingDraws draws = RoutingDraws::per_layer) {
  DrawnRouting made;
  made.router = routing::parse_router(router, 0, 8);
  made.router.capacity_convention = routing::CapacityConvention::library;
  if (capacity_factor != nullptr) {
    made.router.capacity_factor = Decimal::parse(capacity_factor, "test");
  } else {
    made.router.drops = false;
  }
  made.scores = routing::parse_score_source(scores, "test");
  made.fidelity = routing::Fidelity::counts;
  made.draws = draws;
  return made;
}

// The step of a job under drawn routing.
inline TrainingStep with(TrainingJob job, const DrawnRouting& routing) {
  job.routing = routing;
  return training_step(job);
}

}  // namespace moesim::training
