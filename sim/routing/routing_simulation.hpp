#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/routing/router_config.hpp"
#include "sim/routing/score_source.hpp"

namespace moesim::routing {

// Token loss and padding by the names of the result columns; shares in 0..1. Figures of a
// rectification that is off are absent.
struct TokenLoss {
  double failed = 0;         // of the k primary routes: not kept
  double partial = 0;        // tokens with fewer than k kept
  double lost_mass = 0;      // of the top-k probability mass: not kept
  std::optional<double> fill_failed;       // of the nominations: found no slot
  std::optional<double> failed_attempted;  // of all k' S routes: not kept
  double unrouted = 0;       // tokens with no expert at all, after FR and IR
  double residual_loss = 0;  // mean of max(0, 1 - processed mass / top-k mass): the token loss
  double padded = 0;         // of the E C slots: empty
  std::optional<double> duplicate_ir;      // IR rows whose expert had the token already, over S
};

// The routing of one MoE layer over all GPUs of a job.
struct LayerRouting {
  TokenLoss loss;                        // over all GPUs
  std::int64_t capacity = 0;             // C, slots per expert and source GPU
  std::int64_t exchanged_capacity = 0;   // rows per (source, expert) block of a padded exchange
  std::vector<std::int32_t> kept_rows;   // [gpu, expert]: rows kept, fill-in included
  std::vector<std::int32_t> ir_rows;     // [gpu]: rows that gpu computes for IR
};

// What decides the routing of a job; everything in here, and nothing else, is the cache key.
struct RoutingJob {
  RouterConfig router;
  ScoreSource scores;
  int experts = 0;
  int gpus = 0;
  int expert_parallel = 0;      // P; experts are contiguous: expert e on rank e / (E / P)
  int gpus_per_domain = 0;      // NVLink domain, for +ir@node
  std::int64_t tokens_per_gpu = 0;  // S
  int layers = 0;               // MoE layers, each with its own logits
  std::uint64_t seed = 1;
};

// One replica: every layer and every GPU routed by itself.
struct ReplicaRouting {
  TokenLoss loss;  // mean over layers
  std::vector<LayerRouting> layers;
};

// Shares the work between scenarios that route the same logits, and keeps finished results. Safe
// to use from many threads; bounded memory (least recently used results are dropped).
class RoutingCache {
 public:
  explicit RoutingCache(std::size_t max_bytes = std::size_t{256} << 20);
  ~RoutingCache();
  RoutingCache(const RoutingCache&) = delete;
  RoutingCache& operator=(const RoutingCache&) = delete;

  std::shared_ptr<const ReplicaRouting> get(const RoutingJob& job, int replica);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The routing of one replica, not cached. A pure function of its arguments.
ReplicaRouting simulate_routing(const RoutingJob& job, int replica);

// Throws UsageError when the job cannot be: k' > E, E % P != 0, P > gpus, gpus % P != 0, no tokens.
void check(const RoutingJob& job);

}  // namespace moesim::routing
