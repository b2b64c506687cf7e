#pragma once

#include <vector>

#include "sim/model/memory/training_memory.hpp"
#include "sim/training/step/pipelines.hpp"

namespace moesim::training {

// What a GPU of each pipeline rank holds when its activations are largest, as rank_memory(): with
// drawn routing, in 99 % of micro-batches.
std::vector<model::StageMemory> step_memory(const TrainingJob& job, const Pipelines& pipelines);

}  // namespace moesim::training
