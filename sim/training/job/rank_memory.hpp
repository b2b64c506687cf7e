#pragma once

#include <vector>

#include "sim/model/memory/training_memory.hpp"
#include "sim/parallel/schedule.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// What stands on the chunks of a pipeline, in the order of stages.
std::vector<model::StageContent> chunk_contents(const model::Model& model,
                                                const parallel::PipelineLayout& layout);
// The same of a job.
std::vector<model::StageContent> chunk_contents(const TrainingJob& job);

// The weights that a GPU of a pipeline rank has in each of its chunks, ScheduleShape::stages_of(),
// with `experts` in an MoE layer, and in all of them. `contents`: chunk_contents().
std::vector<model::StageParameters> chunk_parameters(
    const TrainingJob& job, const std::vector<model::StageContent>& contents, int rank,
    int experts);
model::StageParameters rank_parameters(const TrainingJob& job,
                                       const std::vector<model::StageContent>& contents, int rank,
                                       int experts);

// The query of what a rank holds, with all but its chunks. `load`: rows over balance that it keeps,
// in all layers.
model::StageMemoryQuery memory_query(const TrainingJob& job, double load);

// Rows over balance that ranks keep in MoE layers.
struct HeldLoads {
  std::vector<double> of_ranks;  // ActivationRules::load of each pipeline rank
  double of_layer = 1;           // ActivationRules::layer_load
};

// What a GPU of each pipeline rank holds when the activations of all its chunks together are
// largest; a pass holds its own until its weight gradient. `contents`: chunk_contents().
std::vector<model::StageMemory> rank_memory(const TrainingJob& job,
                                            const parallel::Schedule& schedule,
                                            const std::vector<model::StageContent>& contents,
                                            const HeldLoads& loads);

}  // namespace moesim::training
