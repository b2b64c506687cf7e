#pragma once

#include <string>
#include <vector>

#include "sim/model/memory/training_memory.hpp"
#include "sim/model/training_work.hpp"
#include "sim/parallel/schedule_run.hpp"
#include "sim/report/formats.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::tool {

// All groups of one kind.
struct GroupFigures {
  parallel::GroupKind kind = parallel::GroupKind::tensor;
  int size = 1;
  int count = 1;
  parallel::DomainsTouched domains;
  bool both_copies = false;  // of a stage, under DualPipe: ranks with the same weights
};

// What one pipeline rank holds and how busy it is.
struct StageFigures {
  std::vector<parallel::PipelineChunk> chunks;
  int layers = 0;
  int moe_layers = 0;
  double forward_flops = 0;  // of one GPU and micro-batch, all chunks
  int held = 0;              // chunk passes at the peak, until the input gradient
  int held_until_weight_gradient = 0;
  double idle_share = 0;
  model::StageMemory memory;  // of one GPU, at the peak, until weight gradients
};

// The GPU that a rank must fit into; name "": none.
struct GpuRoom {
  std::string name;  // its profile
  Bytes memory;
};

// A layout with its memory (Adam shared over data-parallel ranks) and its schedule, in which the
// times of a stage are proportional to the forward FLOPs of its layers: F takes 1 us for each GFLOP
// of a GPU, and so do the input and the weight gradient.
struct LayoutResult {
  training::TrainingJob job;  // without a profile and a cluster
  GpuRoom room;
  model::ModelFlops model_flops;  // per token, forward and backward
  parallel::PipelineLayout chunks;
  parallel::Schedule schedule;
  parallel::ScheduleRun run;
  std::vector<GroupFigures> groups;
  std::vector<StageFigures> stages;  // by pipeline rank

  Bytes most_memory() const;
  bool fits() const { return most_memory() <= room.memory; }
  std::vector<std::vector<int>> members(const GroupFigures& group) const;
  double expert_load() const { return job.expert_load > 0 ? job.expert_load : 1; }
};

// Throws UsageError as training::check_job(), or for more than ten million operations.
LayoutResult make_layout_result(training::TrainingJob job, GpuRoom room);

// The first of some lighter memory requests that fits, as options: "--recompute full"; "" if none.
std::string lighter_options_that_fit(const LayoutResult& result);

// table: for people; csv: a row per pipeline rank, or with `list_groups` per group; json: all of
// it, with the members of groups only if they are listed.
std::string rendered(const LayoutResult& result, report::Format format, bool list_groups);

// A Chrome trace of the pipeline of GPU 0.
std::string layout_timeline(const LayoutResult& result);

}  // namespace moesim::tool
