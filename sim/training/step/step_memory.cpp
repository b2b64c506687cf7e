#include "sim/training/step/step_memory.hpp"

#include <algorithm>
#include <iterator>

#include "sim/base/numbers.hpp"
#include "sim/training/drawn/rank_capacity.hpp"
#include "sim/training/job/rank_memory.hpp"

namespace moesim::training {
namespace {

// A buffer of fixed size is kept whole.
bool holds_drawn_rows(const TrainingJob& job, const Pipelines& pipelines) {
  return pipelines.loads() != nullptr && job.routing->rank_capacity <= 0;
}

// Rows of the fullest rank of a layer over balance: with drawn routing, in 99 % of layers and
// micro-batches.
double layer_load(const TrainingJob& job, const Pipelines& pipelines) {
  if (job.routing && job.routing->rank_capacity > 0) return rank_capacity_load(job);
  if (pipelines.loads() != nullptr) return pipelines.loads()->figures().p99_load;
  return job.capacity_factor > 0 ? job.capacity_factor : pipelines.prices().imbalance();
}

// The drawn load of all MoE layers that a pipeline rank holds.
double drawn_load_of(const Pipelines& pipelines, int rank) {
  std::vector<int> layers;
  for (const int stage : pipelines.shape().stages_of(rank)) {
    const Stage& there = pipelines.stages()[index_of(stage)];
    for (const std::vector<int>& some : {there.layers, there.predictions}) {
      std::copy_if(some.begin(), some.end(), std::back_inserter(layers),
                   [](int layer) { return layer != dense_layer; });
    }
  }
  return pipelines.loads()->held_load(layers);
}

}  // namespace

std::vector<model::StageMemory> step_memory(const TrainingJob& job, const Pipelines& pipelines) {
  std::vector<model::StageContent> contents;
  for (const Stage& stage : pipelines.stages()) contents.push_back(stage.content);
  const double layer = layer_load(job, pipelines);
  HeldLoads loads{{}, layer};
  for (int rank = 0; rank < pipelines.shape().ranks; ++rank) {
    loads.of_ranks.push_back(holds_drawn_rows(job, pipelines) ? drawn_load_of(pipelines, rank)
                                                              : layer);
  }
  return rank_memory(job, pipelines.schedule(), contents, loads);
}

}  // namespace moesim::training
