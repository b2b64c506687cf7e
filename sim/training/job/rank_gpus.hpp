#pragma once

#include <vector>

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// The GPUs of the cluster that ranks are placed on. Precondition of all: job.cluster.
int gpu_of(const TrainingJob& job, int rank);
std::vector<int> gpus_of(const TrainingJob& job, std::vector<int> ranks);

// The group of a kind that touches most domains, as GPUs of the cluster.
std::vector<int> widest_members(const TrainingJob& job, parallel::GroupKind kind);

// The GPUs of an expert-parallel group that lie in the domain with most of them.
std::vector<int> expert_neighbours(const TrainingJob& job);

}  // namespace moesim::training
