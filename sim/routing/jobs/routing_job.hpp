#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/rules/expert_placement.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/scores/score_source.hpp"

namespace moesim::routing {

// What decides the routing of a job. The cache key is made of all its fields; one that is added
// does not compile until key() has a place for it.
struct RoutingJob {
  RouterConfig router;
  ScoreSource scores;
  int experts = 0;
  int gpus = 0;
  int expert_parallel = 0;  // P
  // Null: experts are contiguous, expert e on rank e / (E / P). Otherwise what LayerRouting calls
  // an expert is a position of this placement.
  std::shared_ptr<const ExpertPlacement> expert_placement;
  int gpus_per_domain = 0;          // NVLink domain, for +ir@node; 0: the whole group
  std::int64_t tokens_per_gpu = 0;  // S, of the fullest GPU
  int layers = 0;                   // MoE layers, each with its own logits
  std::uint64_t seed = 1;
  Fidelity fidelity = Fidelity::tokens;  // not automatic
  bool count_copies = false;             // LayerRouting::copies are wanted

  // What a GPU holds: S, fewer where the scores are ragged.
  std::int64_t tokens_of(int gpu) const {
    return scores.tokens_of(gpu % expert_parallel, expert_parallel, tokens_per_gpu);
  }
  // Whether GPUs hold different numbers of tokens; those of every group hold the same ones.
  bool is_ragged() const { return scores.is_ragged(expert_parallel, tokens_per_gpu); }

  // Equal texts route equally, whatever else differs: weights and the way IR is computed do not
  // count. The logits' part leaves the router out: jobs that agree in it share their logits.
  std::string key() const;
  std::string logits_key() const;
};

}  // namespace moesim::routing
