#include "sim/scenario/scenario.hpp"

#include <algorithm>

#include "sim/base/domain_parts.hpp"

namespace moesim::scenario {

routing::RoutingJob Scenario::routing_job() const {
  routing::RoutingJob job;
  job.router = router;
  job.scores = scores;
  job.experts = experts;
  job.gpus = gpus;
  job.expert_parallel = expert_parallel;
  job.place(order);
  job.gpus_per_domain = cluster->gpus_per_domain;
  job.tokens_per_gpu = tokens_per_gpu;
  job.layers = moe_layers();
  job.seed = seed;
  job.count_copies = dedup != Deduplication::none;
  if (dispatcher != nullptr && job.count_copies) {
    // Where counts do not have them, a dispatcher estimates from counts how many there are.
    routing::RoutingJob counted = job;
    counted.count_copies = false;
    const bool by_counts = routing::choose_fidelity(fidelity, counted) == routing::Fidelity::counts;
    if (by_counts && !routing::counts_refusal(job).empty()) job = counted;
  }
  job.fidelity = routing::choose_fidelity(fidelity, job);
  return job;
}

int Scenario::moe_layers() const { return trace_layers > 0 ? trace_layers : model->moe_layers(); }

std::int64_t Scenario::tokens_of(int gpu) const {
  if (!has_moe()) return tokens_per_gpu;
  return scores.tokens_of(gpu % expert_parallel, expert_parallel, tokens_per_gpu);
}

bool Scenario::is_ragged() const {
  return has_moe() && scores.is_ragged(expert_parallel, tokens_per_gpu);
}

bool Scenario::has_aligned_groups() const {
  return !domains_cut_groups(gpus, expert_parallel, cluster->gpus_per_domain);
}

double Scenario::mean_tokens() const {
  if (!is_ragged()) return static_cast<double>(tokens_per_gpu);
  std::int64_t sum = 0;
  for (int rank = 0; rank < expert_parallel; ++rank) sum += tokens_of(rank);
  return static_cast<double>(sum) / expert_parallel;
}

std::int64_t Scenario::gate_outputs() const {
  if (!has_moe() || !router.has_gate()) return 0;
  return router.mixes_tokens() ? mixed_slots() : experts;
}

std::int64_t Scenario::mixed_sequences() const {
  return std::max<std::int64_t>(1, tokens_per_gpu / sequence_length);
}

std::int64_t Scenario::mixed_slots() const {
  const std::int64_t slots = experts * router.capacity(tokens_per_gpu, experts);
  return (slots + mixed_sequences() - 1) / mixed_sequences();
}

}  // namespace moesim::scenario
