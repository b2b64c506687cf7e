#include "sim/training/job/rank_gpus.hpp"

namespace moesim::training {

int gpu_of(const TrainingJob& job, int rank) {
  const int together = job.placed_ranks();
  return rank / together * job.cluster->gpus_per_domain + rank % together;
}

std::vector<int> widest_members(const TrainingJob& job, parallel::GroupKind kind) {
  std::vector<int> widest = job.layout.layout.widest_group(kind, job.placed_ranks());
  for (int& rank : widest) rank = gpu_of(job, rank);
  return widest;
}

}  // namespace moesim::training
