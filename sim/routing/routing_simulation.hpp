#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/routing/router_config.hpp"
#include "sim/routing/score_source.hpp"
#include "sim/routing/token_loss.hpp"

namespace moesim::routing {

// The routing of one MoE layer over all GPUs of a job.
struct LayerRouting {
  TokenLoss loss;                       // over all GPUs
  std::int64_t capacity = 0;            // C, slots per expert and source GPU (the fullest)
  std::int64_t exchanged_capacity = 0;  // rows per (source, expert) block of a padded exchange:
                                        // C; under `group` scope the largest of any group
  std::vector<std::int32_t> kept_rows;  // [gpu, expert]: rows kept, fill-in included
  std::vector<std::int32_t> ir_rows;    // [gpu]: rows that gpu computes for IR
  std::vector<std::int64_t> demand;     // [expert]: primary routes of all GPUs that asked for it,
                                        // kept or not
};

// What decides the routing of a job; everything in here, and nothing else, is the cache key.
struct RoutingJob {
  RouterConfig router;
  ScoreSource scores;
  int experts = 0;
  int gpus = 0;
  int expert_parallel = 0;          // P; experts are contiguous: expert e on rank e / (E / P)
  int gpus_per_domain = 0;          // NVLink domain, for +ir@node; 0: the whole group
  std::int64_t tokens_per_gpu = 0;  // S, of the fullest GPU
  int layers = 0;                   // MoE layers, each with its own logits
  std::uint64_t seed = 1;

  // What a GPU holds: S, fewer where the scores are ragged.
  std::int64_t tokens_of(int gpu) const {
    return scores.tokens_of(gpu % expert_parallel, expert_parallel, tokens_per_gpu);
  }

  // Equal texts route equally, whatever else differs: weights and the way IR is computed do not
  // count. The logits' part leaves the router out: jobs that agree in it share their logits.
  std::string key() const;
  std::string logits_key() const;
};

// One replica: every layer and every GPU routed by itself.
struct ReplicaRouting {
  TokenLoss loss;  // mean over layers
  std::vector<LayerRouting> layers;
};

// Shares the work between scenarios that route the same logits, and keeps finished results. Safe
// to use from many threads, which help each other with the layers of one batch; bounded memory
// (least recently used results are dropped).
class RoutingCache {
 public:
  explicit RoutingCache(std::size_t max_bytes = std::size_t{256} << 20);
  ~RoutingCache();
  RoutingCache(const RoutingCache&) = delete;
  RoutingCache& operator=(const RoutingCache&) = delete;

  // Jobs that will be asked for, in that order (a sweep's rows), `replicas` each. The first get()
  // of one of them then routes those behind it that share its logits in the same pass, as many as
  // the memory bound allows. Changes the time taken, never a result. Jobs that cannot be are passed
  // over.
  void announce(std::span<const RoutingJob> jobs, int replicas);

  // Throws what check() throws.
  std::shared_ptr<const ReplicaRouting> get(const RoutingJob& job, int replica);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The routing of one replica, not cached. A pure function of its arguments.
ReplicaRouting simulate_routing(const RoutingJob& job, int replica);

// The same for jobs that share their logits (equal logits_key(); UsageError otherwise): each
// (layer, GPU) is drawn once and routed under each job. Every result is the one that its job gives
// alone, to the bit.
std::vector<ReplicaRouting> simulate_routing(std::span<const RoutingJob> jobs, int replica);

// Throws UsageError when the job cannot be: k' > E, E % P != 0, P > gpus, gpus % P != 0, no tokens;
// ranks that hold different numbers of tokens under a padded exchange, which would hang.
void check(const RoutingJob& job);

}  // namespace moesim::routing
