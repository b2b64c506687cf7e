#pragma once

#include <vector>

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// The GPU of the cluster that a rank is placed on. Precondition of both: job.cluster.
int gpu_of(const TrainingJob& job, int rank);

// The group of a kind that touches most domains, as GPUs of the cluster.
std::vector<int> widest_members(const TrainingJob& job, parallel::GroupKind kind);

}  // namespace moesim::training
