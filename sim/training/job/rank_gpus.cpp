#include "sim/training/job/rank_gpus.hpp"

#include <map>

namespace moesim::training {

int gpu_of(const TrainingJob& job, int rank) {
  const int together = job.placed_ranks();
  return rank / together * job.cluster->gpus_per_domain + rank % together;
}

std::vector<int> gpus_of(const TrainingJob& job, std::vector<int> ranks) {
  for (int& rank : ranks) rank = gpu_of(job, rank);
  return ranks;
}

std::vector<int> widest_members(const TrainingJob& job, parallel::GroupKind kind) {
  return gpus_of(job, job.layout.sizes.widest_group(kind, job.placed_ranks()));
}

std::vector<int> expert_neighbours(const TrainingJob& job) {
  std::map<int, std::vector<int>> in_domain;
  for (const int gpu : widest_members(job, parallel::GroupKind::expert)) {
    in_domain[job.cluster->domain_of(gpu)].push_back(gpu);
  }
  std::vector<int> most;
  for (const auto& [domain, gpus] : in_domain) {
    if (gpus.size() > most.size()) most = gpus;
  }
  return most;
}

}  // namespace moesim::training
