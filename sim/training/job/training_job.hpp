#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/base/enum_names.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/model/memory/training_memory.hpp"
#include "sim/model/model.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "sim/profile/dispatcher.hpp"
#include "sim/profile/hidden_share.hpp"
#include "sim/profile/profile.hpp"
#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/rules/expert_placement.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/scores/score_source.hpp"

namespace moesim::training {

// Which operations are launched as CUDA graphs, one launch each.
enum class Graphs { none, router, parts, layers };
inline constexpr EnumNames<Graphs, 4> graphs_names{{
    {Graphs::none, "none", "every kernel is launched by the host"},
    {Graphs::router, "router", "the router; attention and experts are launched"},
    {Graphs::parts, "parts", "attention and router; the experts are launched"},
    {Graphs::layers, "layers", "whole layers; needs shapes that do not depend on routing"},
}};

// The data type whose curve prices products in a precision: per-tensor FP8's for MXFP8 too, whose
// products run at its rate.
const char* product_type(model::Precision precision);

// What the host costs. None of it is measured on the machine that is asked about: see README.md of
// this room.
struct HostCosts {
  // What is no host any more.
  static constexpr double most_launch_us = 1000;
  static constexpr double most_sync_us = 1e6;
  static constexpr double most_step_us = 1e9;

  double launch_us = 15;  // of the framework, for each kernel that it launches
  double sync_us = 20;    // GPU idle after the host has read a result
  double step_us = 2000;  // per step: data, logging, clipping's host read
  // The factor on launches and reads: how much longer the host of one's own software takes than is
  // typed.
  double factor = 1;
  // Whether each takes the default because nobody gave a time.
  bool assumes_launch = true;
  bool assumes_read = true;
  bool assumes_step = true;

  double priced_launch_us() const { return factor * launch_us; }
  double priced_sync_us() const { return factor * sync_us; }
};

// For which parts of a step routing is drawn.
enum class RoutingDraws { per_layer, per_micro_batch };
inline constexpr EnumNames<RoutingDraws, 2> routing_draws_names{{
    {RoutingDraws::per_layer, "per-layer",
     "one routing of each MoE layer, the same in all micro-batches and groups; of a trace the mean "
     "over recorded steps"},
    {RoutingDraws::per_micro_batch, "per-micro-batch",
     "each layer, micro-batch and expert-parallel group by itself; of a trace recorded steps "
     "evenly spread"},
}};

// How tokens choose experts. The sources of rows are all ranks, each with its T' tokens.
struct DrawnRouting {
  routing::RouterConfig router;
  routing::ScoreSource scores;
  routing::Fidelity fidelity = routing::Fidelity::automatic;
  std::shared_ptr<const routing::ExpertPlacement> placement;  // null: contiguous
  std::string placement_name = "contiguous";                  // as --expert-placement has it
  // The options of a router that were typed, among those that most jobs leave alone: flag and
  // value, no value where this router has no such choice.
  std::vector<std::pair<std::string, Cell>> rare_options;
  RoutingDraws draws = RoutingDraws::per_layer;
  // Without capacity per expert: rows of a rank's buffer over balance; 0: as many as come. See
  // rank_capacity.hpp.
  double rank_capacity = 0;
  std::uint64_t seed = 1;
  int replica = 0;     // another popularity of experts and other tokens for each; not of a trace
  int trace_step = 0;  // of a trace the recorded step to take, from 1 on; 0: all (taken_steps())
};

// The documents of a job as they were typed, a name or a path: columns and commands must reproduce
// the job, and two files may give themselves one name. Empty of a job made without options.
struct TypedDocuments {
  std::string profile;
  std::string cluster;
  std::string model;
  std::string dispatcher;
};

// A token's experts lie in `kept` of `groups` equal groups of neighbours.
struct KeptGroups {
  int groups = 1;
  int kept = 1;
};

inline constexpr int most_redundant_experts = 1 << 16;

// One optimizer step of training on a whole cluster. Without `routing` the rows of experts are
// balanced but for the chance of independent draws ("forced balance" of Megatron-Core, random
// logits).
struct TrainingJob {
  std::shared_ptr<const profile::Profile> profile;
  std::shared_ptr<const cluster::Cluster> cluster;
  std::shared_ptr<const model::Model> model;
  // nullptr: NCCL's all-to-all of every copy of a row, or the next one.
  std::shared_ptr<const profile::Dispatcher> dispatcher;
  // Megatron-Core's all-gather dispatcher: all tokens of the EP x ETP ranks to each of them, and
  // the outputs back by a reduce-scatter. Precondition: no `dispatcher`.
  bool gathers_tokens = false;
  // What an exchange takes from computation beside it; 0: those that the dispatcher's time is of,
  // or NCCL's.
  int exchange_sms = 0;
  TypedDocuments typed;
  parallel::LayoutRequest layout;
  int choices = 0;                          // experts per token; 0: those of the model
  std::optional<KeptGroups> forced_groups;  // without routing; nothing: those of the model's router
  // Without `routing` alone: rows per expert over balance, padded; 0: dropless.
  double capacity_factor = 0;
  // Without `routing` alone: rows of the fullest rank over balance; 0: that of random logits.
  double expert_load = 0;
  // Without `routing` alone: dropless rows go to a buffer of fixed size, so that the host reads no
  // counts.
  bool has_row_buffer = false;
  bool forced_fill_in = false;  // the router fills padding in (FR), for which kernels are launched
  std::optional<DrawnRouting> routing;
  // Also the precision of the GEMMs. Weights are gathered in it, as by the recipes of NVIDIA's
  // Megatron-Bridge.
  model::StateRules states = {.low_precision_gather = true};
  model::Recompute recompute;
  model::Offload offload;           // not with whole layers recomputed
  bool overlaps_gradients = true;   // reduce-scatter under the last backward pass
  bool overlaps_parameters = true;  // all-gather under the first forward pass
  // The share of the computing beside such an exchange that hides it. Software that prefetches on
  // streams of its own may hide more: add_hidden_parts() prices all.
  double hidden_share = profile::hidden_share;
  // One kernel computes the FFNs of all local experts, with activation, casts and biases.
  bool fused_experts = false;
  bool fp8_attention = false;       // core attention in FP8 too
  bool low_precision_head = false;  // the output head in the format of the other products
  // Rows on their way to experts, and gradients on theirs, in that format too; bf16 home.
  bool low_precision_dispatch = false;
  // Exchanges of tensor ranks run in pieces under the products that they belong to.
  bool overlaps_tensor = false;
  Graphs graphs = Graphs::none;
  HostCosts host;
  // Consecutive ranks placed in a domain; 0: all its GPUs, of a job that spans several domains the
  // largest power of two (64 of 72).
  int ranks_per_domain = 0;
  // Copies of hot experts beside the experts of each MoE layer, the same number on every rank of an
  // expert-parallel group (DeepSeek's EPLB); with `routing` without capacity.
  int redundant_experts = 0;

  int experts_per_token() const;
  bool fills_in() const;
  KeptGroups kept_groups() const;  // of the drawn router, else of the model's
  int experts() const;             // of an MoE layer; 0: no experts
  int held_experts() const;        // of an MoE layer, copies included; 0: no experts
  int placed_ranks() const;        // in a domain
  // "NVIDIA H100 80GB HBM3", or "NVIDIA H800 with kernels of ..." of a cluster with others.
  std::string gpu_name() const;

  // Whether the host has to read how many rows came before it launches the experts.
  bool reads_row_counts() const;
  const char* product_type() const { return training::product_type(states.precision); }
  // What a layer keeps. `load`: rows of the fullest rank over balance, in all layers.
  model::ActivationRules activation_rules(double load) const;
  double dispatched_element_bytes() const;
  double tokens() const;           // T of a tensor-parallel group, one micro-batch
  double tokens_per_rank() const;  // T', with sequence parallelism
  // k T': routes of a rank's tokens, and rows that it computes of them when experts are balanced.
  double balanced_rows() const;
  // Of an exchange of rows: EP; with a dispatcher, or tokens gathered, EP x ETP.
  int exchanging_ranks() const;
  bool exchanges_slices() const;  // the latter
  model::ShardSizes shards() const;
};

// The job with forced balance in the place of its drawn routing, and so without copies of experts:
// dropless, in a buffer of fixed size if its rows have one. The kernels of its router are launched
// as before.
TrainingJob with_forced_balance(const TrainingJob& job);

// The job with random logits, which no expert is popular with, under the same router: capacity,
// padding and rectification stay. Without copies of experts. Precondition: job.routing.
TrainingJob with_random_logits(const TrainingJob& job);

// Rows over balance of padded blocks that have the C rows of a source, whatever comes; else 0.
// Precondition: job.routing.
double capacity_load(const TrainingJob& job);
// Whether a step takes the same time whatever is drawn: such blocks, sent as they are, and no
// rectified rows.
bool ignores_draws(const TrainingJob& job);

// The job without recomputation.
TrainingJob without_recompute(const TrainingJob& job);

// Rows of the busiest of `ranks` over the mean, expected, when each of `ranks` x `tokens` tokens
// chooses k of E experts uniformly: the normal approximation of the sum, and the expected maximum
// of as many independent normal numbers (Blom 1958). 256 experts, k 8, 32 ranks, 4,096 tokens:
// 1.011 (drawn: 1.012).
double random_imbalance(int experts, int choices, int ranks, double tokens);

// The rows over balance of a job without drawn routing: those that the experts of the busiest rank
// compute, and those that it sends or receives. A slice of an expert computes the rows of all ETP
// groups of sources, each of which has an exchange of its own.
struct ForcedLoad {
  double computed = 1;
  double exchanged = 1;
};
ForcedLoad forced_load(const TrainingJob& job);

}  // namespace moesim::training
