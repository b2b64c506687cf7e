#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/rules/expert_placement.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/scores/score_source.hpp"

namespace moesim::routing {

// Everything that determines the routing of a job. The cache key is made of all fields; a new field
// does not compile until key() uses it.
struct RoutingJob {
  RouterConfig router;
  ScoreSource scores;
  int experts = 0;
  int gpus = 0;
  int expert_parallel = 0;  // P
  int slices = 1;           // of an expert, each on a GPU of its own: for recorded_rank() alone
  // Null: experts are contiguous, expert e on rank e / (E / P). Otherwise the experts of
  // LayerRouting are positions of this placement.
  std::shared_ptr<const ExpertPlacement> expert_placement;
  int gpus_per_domain = 0;          // NVLink domain, for +ir@node; 0: the whole group
  std::int64_t tokens_per_gpu = 0;  // S, of the fullest GPU
  int layers = 0;                   // MoE layers, each with its own logits
  std::uint64_t seed = 1;
  Fidelity fidelity = Fidelity::tokens;  // not automatic
  bool count_copies = false;             // whether to fill LayerRouting::copies
  // Whether to fill LayerRouting::loss. Without: counts draw no tokens for what they do not say of
  // it (all but failed, fill_failed and padded), unless rectified rows need them.
  bool with_losses = true;

  // Places the experts, and the router's given biases with them.
  void place(std::shared_ptr<const ExpertPlacement> placement);

  // The tokens of a GPU: S, or fewer where the scores are ragged.
  std::int64_t tokens_of(int gpu) const {
    return scores.tokens_of(gpu % expert_parallel, expert_parallel, tokens_per_gpu);
  }
  // Whether GPUs have different numbers of tokens; the pattern is the same in every group.
  bool is_ragged() const { return scores.is_ragged(expert_parallel, tokens_per_gpu); }

  // Jobs with equal keys have equal routing: weights and the way IR is computed are not part of the
  // key. logits_key() excludes the router: jobs with the same one share their logits.
  std::string key() const;
  std::string logits_key() const;
};

// Equal for sources that give the same logits.
std::string scores_key(const ScoreSource& scores);

}  // namespace moesim::routing
