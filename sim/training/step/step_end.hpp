#pragma once

#include <vector>

#include "sim/model/memory/data_parallel.hpp"
#include "sim/training/step/pipelines.hpp"

namespace moesim::training {

// Buckets that a rank of a pipeline exchanges at the end of a step, one after another.
struct BucketExchange {
  Part part = Part::gradients;
  profile::Collective kind = profile::Collective::reduce_scatter;
  parallel::GroupKind group = parallel::GroupKind::data_context;
  int buckets = 0;
  double each_us = 0;
  bool is_across_instances = false;  // StateRules::optimizer_instances; else inside one
  bool is_between_copies = false;    // shards, of DualPipe's two copies of a stage
};
struct RankEnd {
  PartTimes parts{};  // what is exposed after the last backward pass
  std::vector<BucketExchange> exchanges;
  double last_reduction_us = 0;  // of parts[gradients]: behind the rank's last pass
};

// Of a rank, when it has no pass left.
Picoseconds last_pass(const parallel::RankRun& rank);
// What a step takes beyond the makespan of its pipeline. All ranks wait at the gradient norm for
// the one whose reductions end last, each behind its own last pass, and at the end for the one that
// takes longest from there.
PartTimes joint_end(const parallel::ScheduleRun& run, const std::vector<RankEnd>& ends);

// The ends of a step, behind the last backward pass: the exchanges of gradients and weights as far
// as passes do not hide them, the optimizer, the host. DualPipe's two copies of a stage see other
// micro-batches: the ranks of both reduce gradients and gather weights together. What ZeRO 2 and 3
// reduce or gather in every micro-batch stays inside a copy; at the end of the step ranks of the
// two that have the same shard exchange it.
class StepEnds {
 public:
  // Refers to all. `slowest`: of the pipelines.
  StepEnds(const TrainingJob& job, const Pipelines& pipelines, const PipelineRun& slowest);

  RankEnd of(int rank) const;

 private:
  enum class Among { copy, both_copies, shards_of_copies };  // of a stage
  struct Wanted {
    Part part;
    profile::Collective kind;
    Among among;
    model::StageParameters parameters;
    model::BufferBytes bytes;
  };
  BucketExchange buckets_of(const Wanted& wanted, parallel::GroupKind group, double parameters,
                            double bytes) const;
  double exposed_us(const Wanted& wanted, double hidden_us, bool overlaps, RankEnd& end) const;
  double gathered_us(const model::StageParameters& held, double hidden_us, RankEnd& end) const;
  double copies_us(const model::StageParameters& held, RankEnd& end) const;
  double across_instances_us(const model::StageParameters& held, double hidden_us,
                             RankEnd& end) const;

  const TrainingJob& job_;
  const Pipelines& pipelines_;
  const PipelineRun& slowest_;
  const ExchangePrices& exchanges_;
  std::vector<model::StageContent> contents_;
};

}  // namespace moesim::training
