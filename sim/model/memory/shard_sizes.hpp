#pragma once

namespace moesim::model {

// Ranks per group of a training step: tensor x context x data ranks of a pipeline stage share the
// weights outside the experts, expert_tensor x expert x expert_data ranks the experts.
struct ShardSizes {
  int tensor = 1;
  int context = 1;
  int expert = 1;
  int expert_tensor = 1;
  int data = 1;
  int expert_data = 1;
  // Pipeline ranks that have the weights of a stage: two under dualpipe, whose micro-batches come
  // from both ends.
  int stage_copies = 1;

  // Ranks that hold the same weights outside the experts: context ranks have other tokens only.
  int dense_replicas() const { return data * context; }
};

}  // namespace moesim::model
