#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/training/job/training_job.hpp"

namespace moesim::study {

// A dispatcher as it was typed and what a job has of it: its document, or that tokens are gathered;
// without either: all-to-all.
struct TypedDispatcher {
  std::string typed;
  std::shared_ptr<const profile::Dispatcher> document;
  bool gathers_tokens = false;

  void apply_to(training::TrainingJob& job) const;
};
TypedDispatcher dispatcher_of(const training::TrainingJob& job);

// Which training jobs a search looks at: `base` with every combination of these values that
// parallel::layout_refusal() and training::option_refusal() allow. GPUs, model, sequence length,
// global batch and software are those of `base`, so that all candidates compute the same step.
struct TrainingSpace {
  training::TrainingJob base;
  // Options whose values were asked for, such as "tensor-parallel" and "global-batch": they stay on
  // another number of GPUs, and sizes that are not usual together are looked at.
  std::set<std::string> typed;
  int mtp_depths = 0;  // multi-token prediction, behind the last layer
  std::vector<int> tensor;
  std::vector<int> context;
  std::vector<int> pipeline;
  std::vector<int> virtual_pipeline;
  // Layers that the last chunk has fewer than the others, for the output head: where the rest then
  // divides evenly. 0: divided evenly, or the first chunks have one more.
  std::vector<int> fewer_in_last;
  std::vector<int> expert;
  std::vector<int> expert_tensor;
  std::vector<int> ranks_per_domain;  // TrainingJob::ranks_per_domain
  std::vector<std::int64_t> micro_batch;
  std::vector<bool> expert_overlap;
  std::vector<model::Recompute> recompute;
  std::vector<int> zero;
  // ZeRO 2 and 3 with several pipeline ranks, too: few frameworks run that.
  bool zero_under_pipeline = false;
  std::vector<model::Precision> precision;
  std::vector<training::Graphs> graphs;
  std::vector<TypedDispatcher> dispatchers;
  // Absent: balanced. Experts are placed anew on the ranks of each candidate, by `placement_name`.
  std::vector<std::optional<training::DrawnRouting>> routings;
};

// Nothing, modules that are cheap to compute again, more of them, whole layers.
std::vector<model::Recompute> usual_recompute(const model::Model& model);

// TrainingJob::ranks_per_domain of placements that people use: 0, the default; where GPUs span
// several domains of more than one node also full domains, and equal shares on no more domains than
// the default takes (144 GPUs on racks of 72: 0, 72, 48).
std::vector<int> usual_placements(const training::TrainingJob& base);

// Powers of two and divisors as people use them: up to 8 tensor and expert-tensor ranks, inside an
// NVLink domain; pieces of a sequence of at least 4,096 tokens for context ranks; up to 32 pipeline
// ranks and 16 chunks of each; up to 8 sequences per micro-batch. Recomputation: nothing, cheap
// modules, whole layers. ZeRO 1, and 2 without a pipeline. Routing and what else is searched
// (searched_choices.hpp) as in `base`, and the placement if that says one: else usual_placements().
TrainingSpace usual_training_space(const training::TrainingJob& base);

// A space on another number of GPUs, as if it had been asked for there: usual lists that nobody
// typed become those of these GPUs, and the global batch grows with them unless it was typed.
TrainingSpace on_gpus(const TrainingSpace& space, int gpus);

// Jobs with the same prices of layers: they differ in the pipeline's chunks, and in ZeRO below 2. A
// search may have millions of jobs: each is made when it is asked for, and what families have in
// common is there once.
class TrainingFamily {
 public:
  // `layouts`: those that jobs are added of. The routing is number `routing` of
  // TrainingSpace::routings, with experts placed on the ranks of the layouts.
  TrainingFamily(std::shared_ptr<const training::TrainingJob> base,
                 std::shared_ptr<const std::vector<parallel::LayoutRequest>> layouts,
                 std::shared_ptr<const std::optional<training::DrawnRouting>> drawn,
                 std::size_t routing, const model::Recompute& recompute)
      : base_(std::move(base)),
        layouts_(std::move(layouts)),
        drawn_(std::move(drawn)),
        routing_(routing),
        recompute_(recompute) {}

  void add(std::size_t layout, int zero) { members_.push_back({layout, zero}); }

  std::size_t size() const { return members_.size(); }
  std::size_t routing() const { return routing_; }
  training::TrainingJob job(std::size_t at) const;
  const parallel::LayoutRequest& layout(std::size_t at) const {
    return (*layouts_)[members_[at].layout];
  }
  // What all jobs have but for layout, ZeRO, routing and recomputation.
  const training::TrainingJob& common() const { return *base_; }
  training::TrainingJob first() const { return job(0); }
  std::vector<training::TrainingJob> jobs() const;
  // Whether the jobs of both, of the same space, are made of the same layouts.
  bool shares_layouts(const TrainingFamily& other) const {
    return base_ == other.base_ && layouts_ == other.layouts_;
  }
  // Each job differs from that of the other family at the same place in its routing alone.
  bool differs_in_routing_alone(const TrainingFamily& other) const {
    const auto key = [](const model::Recompute& recompute) {
      return std::tie(recompute.modules, recompute.full, recompute.layers);
    };
    return shares_layouts(other) && key(recompute_) == key(other.recompute_) &&
           members_ == other.members_;
  }

 private:
  struct Member {
    std::uint32_t layout = 0;
    std::uint8_t zero = 0;
    bool operator==(const Member&) const = default;
    Member(std::size_t of, int stage)
        : layout(static_cast<std::uint32_t>(of)), zero(static_cast<std::uint8_t>(stage)) {}
  };

  std::shared_ptr<const training::TrainingJob> base_;
  std::shared_ptr<const std::vector<parallel::LayoutRequest>> layouts_;
  std::shared_ptr<const std::optional<training::DrawnRouting>> drawn_;
  std::size_t routing_ = 0;
  model::Recompute recompute_;
  std::vector<Member> members_;
};

struct TrainingCandidates {
  std::vector<TrainingFamily> families;
  std::size_t count = 0;
  std::size_t combinations = 0;  // layouts asked for, possible or not
  std::size_t refused = 0;       // of them: they break a rule of layouts
  std::string a_refusal;         // one of the rules, or of training::option_refusal()
};
TrainingCandidates candidates_of(const TrainingSpace& space);

// What would give a space without candidates some ("--global-batch 4032", "--gpus 512"): the
// nearest batches below and above that the replicas can divide, and the nearest number of whole
// nodes (within a quarter).
std::vector<std::string> nearest_possible(const TrainingSpace& space);

}  // namespace moesim::study
