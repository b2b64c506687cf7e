#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/model/model.hpp"
#include "sim/profile/profile.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/scenario/conditions.hpp"

namespace moesim::scenario {

enum class Dispatch { index, einsum };
enum class Mode { train, prefill };
enum class Checkpointing { none, full };
enum class Overlap { none, gradient };  // gradient: reduce while the backward pass goes on
// How far the training software fuses small kernels. eager: a gate in fp32 of many kernels, and the
// gated activation as the profile's activation curve has it; fused: one gate kernel with bf16
// input, and an activation that streams at the memory bandwidth (Megatron-Core's).
enum class Fusion { eager, fused };
enum class Network { automatic, fast, flows };
// What an exchange without padding sends of a token that several of its GPUs' experts keep: a row
// for each expert (libraries on NCCL's all-to-all); one for each GPU; or one for each node (NVLink
// domain), to the GPU there of the sender's place in its own node, which forwards it to the others
// (DeepEP's kernels for training; DeepSeek-V3, arXiv:2412.19437, section 3.2.2). Rows go home the
// same way, added up where they were copied.
enum class Deduplication { none, gpu, node };

// One step to be simulated, complete and checked: everything a result depends on.
struct Scenario {
  std::shared_ptr<const profile::Profile> profile;
  std::shared_ptr<const model::Model> model;
  std::shared_ptr<const cluster::Cluster> cluster;
  std::string profile_name;  // as typed: the columns must reproduce the row
  std::string model_name;
  std::string cluster_name;

  int gpus = 32;            // G
  int expert_parallel = 8;  // P
  int experts = 8;          // E
  routing::RouterConfig router;
  std::string expert_placement = "contiguous";        // as typed
  std::shared_ptr<const routing::ExpertOrder> order;  // null: contiguous
  routing::ScoreSource scores;
  routing::Fidelity fidelity = routing::Fidelity::automatic;  // as typed
  Dispatch dispatch = Dispatch::index;
  Deduplication dedup = Deduplication::none;
  Fusion fusion = Fusion::eager;
  Mode mode = Mode::train;
  std::int64_t sequence_length = 2048;
  std::int64_t micro_batch = 8;         // sequences per GPU and micro-step
  std::int64_t tokens_per_gpu = 16384;  // of one micro-step, S
  std::int64_t micro_steps = 1;         // gradient accumulation: global batch / (G * micro_batch)
  Checkpointing checkpointing = Checkpointing::none;
  int zero = 1;
  Overlap overlap = Overlap::none;
  Network network = Network::automatic;
  Conditions conditions;
  int replicas = 16;
  std::uint64_t seed = 1;

  bool has_moe() const { return !router.is_dense() && model->moe.has_value(); }
  // What a GPU holds in a micro-step: S, fewer where the scores are ragged, alike in every
  // expert-parallel group. Without MoE layers the scores mean nothing, and all hold S.
  std::int64_t tokens_of(int gpu) const;
  bool is_ragged() const;
  double mean_tokens() const;  // of a GPU
  routing::RoutingJob routing_job() const;
  // Columns of the gate's matrix: experts, slots of soft routing, none without a gate.
  std::int64_t gate_outputs() const;
  // Whether every expert-parallel group has whole nodes (NVLink domains), or lies inside one.
  bool has_aligned_groups() const {
    return expert_parallel % cluster->gpus_per_domain == 0 ||
           cluster->gpus_per_domain % expert_parallel == 0;
  }
  // Soft routing mixes the tokens of one sequence into slots (Puigcerver et al. 2023,
  // arXiv:2308.00951, section 2.1): so many sequences on a GPU of S tokens, and E p slots for each,
  // so that it has C for each expert.
  std::int64_t mixed_sequences() const;
  std::int64_t mixed_slots() const;
};

std::string name_of(Dispatch value);
std::string name_of(Mode value);
std::string name_of(Checkpointing value);
std::string name_of(Overlap value);
std::string name_of(Network value);
std::string name_of(Deduplication value);

// Throws UsageError for a scenario that cannot be, naming the flags to change.
void check(const Scenario& scenario);

}  // namespace moesim::scenario
