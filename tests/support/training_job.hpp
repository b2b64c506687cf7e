#pragma once

#include <cstdint>
#include <memory>

#include "sim/training/step/training_step.hpp"

namespace moesim::training {

// Qwen3-30B-A3B on H100 nodes, sequences of 4,096 tokens, a host that costs nothing.
inline TrainingJob qwen_on_h100(int gpus, int pipeline, int expert, std::int64_t global_batch) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load("qwen3-30b-a3b"));
  made.layout.sizes.gpus = gpus;
  made.layout.sizes.pipeline = pipeline;
  made.layout.sizes.expert = expert;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = global_batch;
  made.host = {0, 0, 0};
  return made;
}

inline std::size_t at(int index) { return static_cast<std::size_t>(index); }
inline double part(const TrainingStep& step, TrainingPart part) { return step.parts[at(part)]; }

}  // namespace moesim::training
