#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "sim/model/memory/stage_weights.hpp"
#include "sim/training/step/pipelines.hpp"

namespace moesim::training {

// Buckets that a rank of a pipeline exchanges at the end of a step, one after another: those of one
// of its chunks.
struct BucketExchange {
  TrainingPart part = TrainingPart::gradients;
  profile::Collective kind = profile::Collective::reduce_scatter;
  parallel::GroupKind group = parallel::GroupKind::data_context;
  Replicas replicas = Replicas::instance;
  int buckets = 0;
  double each_us = 0;
  int place = -1;  // of the chunk in ScheduleShape::stages_of(); -1: of all
};
struct RankEnd {
  PartTimes parts{};  // what is exposed after the last backward pass
  std::vector<BucketExchange> exchanges;
};

// When a rank has no pass left.
Picoseconds last_pass(const parallel::RankRun& rank);
// What a step takes beyond the makespan of its pipeline. All ranks wait at the gradient norm for
// the one whose reductions end last, each behind its own last pass, and at the end for the one that
// takes longest from there.
PartTimes joint_end(const parallel::ScheduleRun& run, const std::vector<RankEnd>& ends);

// The ends of a step, behind the last backward pass: the exchanges of gradients and weights as far
// as passes do not hide them, the optimizer, the host. DualPipe's two copies of a stage see other
// micro-batches: the ranks of both reduce gradients and gather weights together. What ZeRO 2 and 3
// reduce or gather in every micro-batch stays inside a copy and is part of its passes; at the end
// of the step ranks of the two that have the same shard exchange it.
class StepEnds {
 public:
  // Refers to all. `slowest`: of the pipelines.
  StepEnds(const TrainingJob& job, const Pipelines& pipelines, const PipelineRun& slowest);

  RankEnd of(int rank);

 private:
  struct Wanted {
    TrainingPart part;
    profile::Collective kind;
    Replicas replicas;
  };
  using Chunks = std::vector<model::StageParameters>;  // of a rank, chunk_parameters()
  // Exchanges of one kind that follow each other.
  struct Queue {
    std::vector<double> chunks_us;  // alone, of each chunk
    double last_us = 0;             // the longest bucket, which nothing hides
    bool crosses_domains = false;
  };
  BucketExchange buckets_of(const Wanted& wanted, parallel::GroupKind group, double parameters,
                            double bytes);
  Queue queue_of(const Wanted& wanted, const Chunks& chunks, RankEnd& end);
  std::vector<Queue> reductions(const Chunks& held, const Chunks& with_copies, RankEnd& end);
  double gradients_us(int rank, const std::vector<Queue>& queues) const;
  double taken_by_passes(int rank, bool crosses_domains) const;
  double gathered_us(int rank, const Chunks& held, RankEnd& end);
  double copies_us(const model::StageParameters& held, RankEnd& end) const;

  const TrainingJob& job_;
  const Pipelines& pipelines_;
  const PipelineRun& slowest_;
  const ExchangePrices& exchanges_;
  std::vector<model::StageContent> contents_;
  // Times of buckets of so many bytes, kept because chunks are mostly alike.
  std::map<std::tuple<profile::Collective, parallel::GroupKind, Replicas, double>, double> known_;
};

}  // namespace moesim::training
