#pragma once

#include <string>
#include <vector>

#include "sim/model/model.hpp"
#include "sim/model/training_memory.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "sim/parallel/schedule_run.hpp"
#include "sim/report/formats.hpp"

namespace moesim::tool {

// All groups of one kind.
struct GroupFigures {
  parallel::GroupKind kind = parallel::GroupKind::tensor;
  int size = 1;
  int count = 1;
  parallel::DomainsTouched domains;
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

// A layout with its memory (bf16, Adam in fp32 shared over data-parallel ranks, nothing recomputed,
// balanced experts) and its schedule, in which the times of a stage are proportional to the forward
// FLOPs of its layers: F takes 1 us for each GFLOP of a GPU, and so do the input and the weight
// gradient.
struct LayoutResult {
  const model::Model* model = nullptr;
  parallel::LayoutRequest request;
  int ranks_per_domain = 8;
  parallel::PipelineLayout chunks;
  parallel::Schedule schedule;
  parallel::ScheduleRun run;
  std::vector<GroupFigures> groups;
  std::vector<StageFigures> stages;  // by pipeline rank
};

// Throws UsageError as check_layout(), or for more than ten million operations.
LayoutResult make_layout_result(const model::Model& model, const parallel::LayoutRequest& request,
                                int ranks_per_domain);

// table: for people; csv: a row per pipeline rank, or with `list_groups` per group; json: all of
// it, with the members of groups only if they are listed.
std::string rendered(const LayoutResult& result, report::Format format, bool list_groups);

// A Chrome trace of the pipeline of GPU 0.
std::string layout_timeline(const LayoutResult& result);

}  // namespace moesim::tool
