#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/layer_router.hpp"
#include "sim/training/job/stage_division.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/layer_prices.hpp"

namespace moesim::training {

// What DrawnLoads takes of a job. Jobs with equal shapes, of the same model, cluster and routing,
// have the same loads, whatever else they differ in.
struct DrawnShape {
  int expert = 1, expert_tensor = 1, blocks_per_set = 1;
  int sets = 1, micro_batches = 1;  // of RoutingDraws::per_micro_batch
  int layers = 0;
  std::int64_t tokens_per_rank = 0;
  bool dispatcher = false;  // what it sends depends on what follows; without one that is default
  profile::SentOnce sent = profile::SentOnce::per_node;
  int per_domain = 0;  // GPUs of an exchange in a domain

  auto operator<=>(const DrawnShape&) const = default;
};
// Precondition: job.routing.
DrawnShape drawn_shape(const TrainingJob& job);
// All else that is drawn, of jobs with the same model, machine and dispatcher. Padding does not
// change which routes are kept, but loads. Precondition: job.routing.
std::string drawn_key(const TrainingJob& job);

// What the drawn routing of a step comes to.
struct RoutingFigures {
  // Mean over layers; `padded` of the slots that are exchanged, which may be other than C.
  routing::TokenLoss loss;
  std::int64_t capacity = 0;  // slots per expert and source rank; 0: none
  // Rows over balance: of the busiest rank of a layer, mean, 99th percentile and most over layers,
  // micro-batches and sets; of the busiest expert, mean (0: not known, with `sampled`).
  double mean_load = 1;
  double p99_load = 1;
  double largest_load = 1;
  double mean_expert_load = 0;
  bool sampled = false;  // rows are drawn around those of a sample: SampledRows
  routing::Fidelity fidelity = routing::Fidelity::counts;
  double draws = 0;  // routings of one layer by one block
  // How many steps a trace has, and those taken, numbered from 1 on, each once.
  int recorded_steps = 0;
  std::vector<int> taken_steps;
  // How many ranks it has, and of how many, from the first on, routing is taken.
  int recorded_ranks = 0, taken_ranks = 0;
  // residual_loss of each layer, [layer, step]; drawn per micro-batch of a trace [layer,
  // micro-batch]. 0 where no losses were asked for.
  std::vector<double> layer_losses;
  // The variance of the residual_loss of one block of ranks in one micro-batch about that of its
  // layer, mean over layers; of a router whose tokens keep their ids (RouterDescriptor) that of the
  // block's mean over layers. A block loses in proportion to the routes that it drops. 0: none are
  // dropped, or a layer has one block.
  double block_variance = 0;
};

// Hears how many layers of a step have been drawn, of how many, after each.
using DrawProgress = std::function<void(std::size_t drawn, std::size_t layers)>;

// The loads of all MoE layers of a step, those of prediction depths last. Drawn per layer, the
// first ranks of a trace stand for all: those of one set. A layer's popularity of experts is the
// same in all micro-batches and groups; tokens are not. Where only the rows of experts matter (no
// capacity per source, no IR, no padding) all sources of a block are drawn as one with all
// their tokens, which has the same law. Rows are rounded to 1/1024 of balance unless all are the
// same. Memory: 72 bytes per layer, step, set and micro-batch, and what the routing of one layer
// takes.
class DrawnLoads {
 public:
  // Precondition: a job that check_job() accepts, job.routing. Throws UsageError as check_drawn(),
  // and for draws that would take many minutes.
  // Without losses those of figures() may be 0, and loads are drawn faster: counts
  // (routing::Fidelity) then draw no tokens for them.
  // `draws`: what other layouts share; null: nothing. `progress` may be empty.
  explicit DrawnLoads(const TrainingJob& job, bool with_losses = true,
                      routing::DrawCache* draws = nullptr, const DrawProgress& progress = {});

  int layers() const { return layers_; }
  // Steps that each have a routing of their own, of which the mean counts: those recorded in a
  // trace, drawn per layer.
  int steps() const { return steps_; }
  // What is the same for all is there once.
  int sets() const { return sets_; }
  int micro_batches() const { return micro_batches_; }
  MoeLoad at(int layer, int set, int micro_batch, int step = 0) const;
  const RoutingFigures& figures() const { return figures_; }
  // Rows over balance that the fullest rank of a group computes in some layers, mean over these, in
  // 99 % of micro-batches: what the layers hold of each together. Of several steps that of the
  // fullest one. 1 without layers.
  double held_load(std::span<const int> layers) const;
  std::size_t bytes() const;  // of memory

 private:
  // Sums over micro-batches and groups, of rows over balance.
  struct RankRows {
    double sum = 0, squares = 0;
  };

  void set_blocks();
  void draw_from_samples(routing::LayerRouter& router, const DrawProgress& progress);
  bool only_sums_matter() const;
  // The micro-batches of one step, `count` of them from `first` on.
  struct MicroBatches {
    int step = 0, first = 0, count = 1;
  };
  // Routes them in a layer, and takes their loads.
  void draw(routing::LayerRouter& router, int layer, int replica, MicroBatches micro_batches);
  void take(const routing::LayerRouting& routing, int layer, MicroBatches micro_batches);
  // [block]: residual_loss of one layer; empty where RoutingFigures::block_variance is 0.
  std::vector<double> block_losses(const routing::LayerRouting& routing) const;
  std::size_t place_of(int layer, int step, int set, int micro_batch) const;  // in loads_
  void add_rows(int layer, int step, std::span<const double> computed);
  double held_load(std::span<const int> layers, int step) const;
  void note_recorded(const std::vector<int>& replicas);
  void set_figures();

  TrainingJob asked_;
  StageDivision division_;
  int layers_ = 0, steps_ = 1, sets_ = 1, micro_batches_ = 1;
  bool sums_ = false;  // all sources of a block are drawn as one
  int blocks_ = 0;     // of a layer; one more is drawn where copies are placed by a measured load
  routing::RoutingJob job_;
  std::vector<MoeLoad> loads_;       // [layer, step, set, micro-batch]
  std::vector<RankRows> rank_rows_;  // [layer, step, rank of a group]
  std::vector<routing::LayerRouting> losses_;
  double expert_loads_ = 0;
  RoutingFigures figures_;
  std::vector<double> of_blocks_;  // [block]: residual_loss, sum over layers, where ids are kept
};

}  // namespace moesim::training
