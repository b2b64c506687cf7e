#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/routing/expert_order.hpp"
#include "sim/routing/fidelity.hpp"
#include "sim/routing/router_config.hpp"
#include "sim/routing/score_source.hpp"
#include "sim/routing/token_copies.hpp"
#include "sim/routing/token_loss.hpp"

namespace moesim::routing {

// The routing of one MoE layer over all GPUs of a job. What the numbers mean, kind by kind:
//   top_k, random, hash    capacity C; kept_rows the routes kept, fill-in included. With
//                          RouterConfig::pads_exchange() each block travels as exchanged_capacity
//                          rows: C, under `group` scope the largest kept count of any group
//   gating_dropout         the same; where the layer skips the exchange (`exchanged` false), rows
//                          go to their GPU's own experts, of ceil(CF S / (E / P)) slots each
//   dropless, base:greedy, bias_balanced
//                          capacity 0; all routes kept, and kept_rows travel
//   group_limited          as dropless; with `drops` as top_k
//   expert_choice, base    blocks of exactly C rows, all kept (expert_choice: of S where C is more)
//   soft                   capacity C slots, all full: kept_rows = C. loss is 0
//   scomoe                 kept_rows are the blocks with their padding: the slots of the pools that
//                          may go there. capacity, the largest of them, is that of an own expert
// exchanged_capacity is the largest block that travels, whatever the kind. C goes by the tokens of
// the source: of ragged sources each has its own, in a padded exchange all send blocks as large as
// the largest, as ranks would wait for rows that others never send; loss.padded is of the slots
// that the C of each source makes. The routes of `loss` are
// those that the router chose (of expert_choice those of the token's k best experts), its masses
// are relative to the k best of all experts; random and hash have no g: each expert counts 1.
struct LayerRouting {
  TokenLoss loss;                       // over all GPUs
  std::int64_t capacity = 0;            // C, slots per expert and source GPU (the fullest)
  std::int64_t exchanged_capacity = 0;  // rows of the largest (source, expert) block
  std::vector<std::int32_t> kept_rows;  // [gpu, expert]
  std::vector<std::int32_t> ir_rows;    // [gpu]: rows that gpu computes for IR
  std::vector<std::int64_t> demand;     // [expert]: primary routes of all GPUs that asked for it,
                                        // kept or not
  bool exchanged = true;                // false: no all-to-all in this layer, on any GPU
  TokenCopies copies;  // with RoutingJob::count_copies; empty for kinds whose blocks are no choices
                       // of tokens (expert_choice, soft, scomoe) and where counts stand for tokens
};

// What decides the routing of a job; everything in here, and nothing else, is the cache key.
struct RoutingJob {
  RouterConfig router;
  ScoreSource scores;
  int experts = 0;
  int gpus = 0;
  int expert_parallel = 0;  // P
  // Null: experts are contiguous, expert e on rank e / (E / P). Otherwise what LayerRouting calls
  // an expert is a place of this order.
  std::shared_ptr<const ExpertOrder> order;
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

  // Called by any thread whenever a layer of a pass has been routed: for progress. Not to be
  // changed while another thread is in get().
  void on_layer(std::function<void()> watcher);

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

// C of a result: slots that an expert has for one source GPU, of the fullest GPU; 0 where the
// router has no capacity. Of scomoe those of a GPU's own expert, all pools together; of gating
// dropout those of a layer that exchanges.
std::int64_t slots_per_expert(const RoutingJob& job, const ReplicaRouting& routing);

// Throws UsageError when the job cannot be: k' > E, E % P != 0, P > gpus, gpus % P != 0, no tokens;
// ranks that hold different numbers of tokens under base, whose blocks have no empty slots;
// Fidelity::counts where counts_refusal() has a reason.
void check(const RoutingJob& job);

}  // namespace moesim::routing
