#pragma once

#include <memory>
#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/routing/rules/expert_placement.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

// Which GPU has which experts.
struct Layout {
  int gpus = 32;                                          // G
  int expert_parallel = 8;                                // P
  int experts = 8;                                        // E
  std::string expert_placement = "contiguous";            // as typed
  std::shared_ptr<const routing::ExpertPlacement> order;  // null: contiguous
};

void use_usual_expert_parallel(Resolution& at);
void group_dense_gpus(Resolution& at);
void check_groups(const Scenario& scenario, Use use);
void use_usual_gpus(Resolution& at);
void use_usual_experts(Resolution& at);
void settle_experts(Resolution& at);  // UsageError for a model without MoE layers
void set_expert_placement(const std::string& text, Resolution& at);
void check_expert_placement_text(const std::string& text, DocumentCache& documents);
std::string expert_placement_of(const Scenario& scenario);
std::uint64_t expert_placement_contents(const Scenario& scenario);

// The upper bounds of whole numbers, here and in the other topics, keep products of sizes inside 64
// bits and the counters of the random streams (rank and replica below 2^24) inside theirs.
template <class Table>
void declare_layout(Table& table) {
  table.whole("gpus", "N", 1, cluster::most_gpus, &Layout::gpus)
      .by_default("32, or the ranks of a trace of several", use_usual_gpus)
      .help("GPUs in all")
      .affects(Affects::routing)
      .after({"routing"})
      .idle(unless_drawn);
  table.whole("expert-parallel", "P", 1, cluster::most_gpus, &Layout::expert_parallel)
      .by_default("as many as divide both, in one node", use_usual_expert_parallel)
      .help("GPUs that share one set of experts: a group; divides GPUs and experts")
      .affects(Affects::routing)
      .after({"cluster", "gpus", "experts"})
      .then(group_dense_gpus)
      .applies(has_experts)
      .idle(without_experts)
      .checked(check_groups);
  table.whole("experts", "E", 1, 1 << 16, &Layout::experts)
      .by_default("the trace's, else the model's", use_usual_experts)
      .help("experts per MoE layer")
      .affects(Affects::routing)
      .after({"model", "router", "capacity-factor", "routing"})
      .then(settle_experts)
      .applies(has_experts)
      .idle(without_experts);
  table
      .text("expert-placement", "NAME|FILE", check_expert_placement_text, set_expert_placement,
            expert_placement_of)
      .by_default("contiguous")
      .help("which of a group's GPUs has expert e; its own ones (+ir) and exchanges follow:")
      .forms({{"contiguous", "GPU e / (E / P)"},
              {"round-robin", "GPU e modulo P"},
              {"balanced:FILE", "by load: a CSV of layer, expert, count"},
              {"FILE", "a CSV of expert, rank, and layer if these differ"}})
      .affects(Affects::routing)
      .after({"experts", "expert-parallel"})
      .applies(has_experts)
      .idle(without_own_experts)
      .contents(expert_placement_contents);
}

}  // namespace moesim::scenario
