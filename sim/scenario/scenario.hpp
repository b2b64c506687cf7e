#pragma once

#include <cstdint>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/scenario/batch.hpp"
#include "sim/scenario/documents.hpp"
#include "sim/scenario/environment.hpp"
#include "sim/scenario/exchange.hpp"
#include "sim/scenario/layout.hpp"
#include "sim/scenario/run.hpp"
#include "sim/scenario/scores.hpp"
#include "sim/scenario/software.hpp"
#include "sim/scenario/training.hpp"

namespace moesim::scenario {

// One step to be simulated, complete and checked: everything a result depends on. The fields of its
// topics are in their files, each with the option that sets it: a new option is a field and its
// entry in declare_TOPIC() there. Parsing, help, checks, notes, columns, the grid and the
// fingerprint follow from the entry (option.hpp says what it may have, option_table.hpp how it is
// written). The entries are templates so that files that use the fields alone do not compile the
// table.
struct Scenario : Documents, Layout, Exchange, Software, Batch, Training, Scores, Environment, Run {
  routing::RouterConfig router;

  // "h100-sxm", or "NVIDIA H800 with kernels of h100-sxm" of a cluster with others.
  std::string gpu_name() const { return cluster->gpu_title(profile->device().name, profile_name); }
  bool has_moe() const { return !router.is_dense() && model->moe.has_value(); }
  int moe_layers() const;  // that are routed
  // What a GPU holds in a micro-step: S, fewer where the scores are ragged, the same in every
  // expert-parallel group. Without MoE layers the scores mean nothing, and all hold S.
  std::int64_t tokens_of(int gpu) const;
  bool is_ragged() const;
  double mean_tokens() const;  // of a GPU
  routing::RoutingJob routing_job() const;
  // Columns of the gate's matrix: experts, slots of soft routing, none without a gate.
  std::int64_t gate_outputs() const;
  bool has_aligned_groups() const;  // with NVLink domains: see domains_cut_groups()
  // Soft routing mixes the tokens of one sequence into slots (Puigcerver et al. 2023,
  // arXiv:2308.00951, section 2.1): so many sequences on a GPU of S tokens, and E p slots for each,
  // so that it has C for each expert.
  std::int64_t mixed_sequences() const;
  std::int64_t mixed_slots() const;
};

// Throws UsageError for a scenario that cannot be, naming the flags to change.
void check(const Scenario& scenario, Use use = Use::step);

}  // namespace moesim::scenario
