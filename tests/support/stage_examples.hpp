#pragma once

#include <cmath>

#include "sim/model/memory/stage_weights.hpp"
#include "tests/support/catch.hpp"

namespace moesim::model {

inline constexpr double gib = 1024.0 * 1024 * 1024;

inline ShardSizes shards_of(int gpus, int tensor, int stages, int expert) {
  ShardSizes shards;
  shards.tensor = tensor;
  shards.expert = expert;
  shards.data = gpus / tensor / stages;
  shards.expert_data = gpus / expert / stages;
  return shards;
}

// All layers of a model, with its ends.
inline StageContent whole(const Model& model) {
  StageContent content = layers_of(model, 0, model.layers);
  content.embedding = content.head = true;
  return content;
}

// Whether a value is that which was printed, to its last digit.
inline bool rounds_to(double value, double printed, double digit) {
  INFO(value << " for " << printed);
  return std::abs(value - printed) <= digit / 2;
}

}  // namespace moesim::model
