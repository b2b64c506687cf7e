#include "tools/moesim/layout/layout_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/report/chrome_trace.hpp"
#include "sim/training/job/rank_memory.hpp"
#include "sim/training/step/job_rules.hpp"

namespace moesim::tool {
namespace {

using parallel::OperationKind;

constexpr std::int64_t most_operations = 10'000'000;

// The forward FLOPs of one micro-batch on one GPU: tensor and context ranks share the tokens; rows
// of experts are balanced, k per token.
double forward_flops(const model::Model& model, const parallel::LayoutRequest& request,
                     const parallel::PipelineChunk& chunk, double mtp_losses) {
  const auto length = static_cast<double>(request.sequence_length);
  const int choices = model.moe ? model.moe->top_k : 0;
  double per_token = 0;
  for (int layer = chunk.first_layer; layer < chunk.first_layer + chunk.layers; ++layer) {
    per_token += model::layer_work(model, layer, length).total(choices);
  }
  const double last_layer = model::layer_work(model, model.layers - 1, length).total(choices);
  const double head = chunk.loss ? head_work(model) : 0;
  per_token += chunk.mtp * (last_layer + model::mtp_projection_work(model) + head);
  per_token += (1 + mtp_losses - chunk.mtp) * head;  // depths on chunks before, and the model's own
  const double ranks = request.sizes.tensor * request.sizes.context;
  return per_token * static_cast<double>(request.micro_batch) * length / ranks;
}

parallel::PipelineTimes times_of(const std::vector<double>& flops) {
  parallel::PipelineTimes times;
  for (const double work : flops) {
    const Picoseconds time = Picoseconds::from_us(work * 1e-9);
    times.stages.push_back({time, time, time});
  }
  return times;
}

void set_memory(LayoutResult& result) {
  const double load = result.expert_load();
  const std::vector<double> of_ranks(result.stages.size(), load);
  const std::vector<model::StageContent> contents =
      training::chunk_contents(*result.job.model, result.chunks);
  const std::vector<model::StageMemory> memory =
      training::rank_memory(result.job, result.schedule, contents, {of_ranks, load});
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    result.stages[rank].memory = memory[rank];
  }
}

StageFigures stage_figures(const LayoutResult& result, const std::vector<double>& flops, int rank) {
  StageFigures figures;
  for (const int chunk : result.schedule.shape.stages_of(rank)) {
    const parallel::PipelineChunk& held = result.chunks.chunks[static_cast<std::size_t>(chunk)];
    figures.chunks.push_back(held);
    figures.layers += held.layers;
    for (int layer = held.first_layer; layer < held.first_layer + held.layers; ++layer) {
      figures.moe_layers += result.job.model->is_moe_layer(layer) ? 1 : 0;
    }
    figures.forward_flops += flops[static_cast<std::size_t>(chunk)];
  }
  const parallel::RankRun& run = result.run.ranks[static_cast<std::size_t>(rank)];
  figures.held = run.held;
  figures.held_until_weight_gradient = run.held_until_weight_gradient;
  figures.idle_share = run.idle.us() / result.run.makespan.us();
  return figures;
}

void check_operations(const parallel::ScheduleShape& shape) {
  const std::int64_t passes = std::int64_t{shape.stages()} * shape.micro_batches;
  if (passes * 3 <= most_operations) return;
  throw UsageError(
      fmt::format("{} chunks x {} micro-batches are a schedule of more than {} operations: give a "
                  "smaller --global-batch; the bubble of fewer micro-batches says the rest",
                  shape.stages(), shape.micro_batches, most_operations));
}

// Times are whole picoseconds: all stages one after another must fit.
void check_work(const std::vector<double>& flops, int micro_batches) {
  constexpr double most = 4e21;  // 46 days at 1 us per GFLOP, less than 2^62 ps
  const double work = 3.0 * micro_batches * std::accumulate(flops.begin(), flops.end(), 0.0);
  if (work <= most) return;
  throw UsageError(
      fmt::format("{:.1e} FLOPs per GPU and step are too many: give a smaller --micro-batch, "
                  "--sequence-length or --global-batch",
                  work));
}

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::forward:
      return "forward";
    case OperationKind::backward:
      return "backward";
    case OperationKind::input_gradient:
      return "input gradient";
    case OperationKind::weight_gradient:
      return "weight gradient";
    case OperationKind::forward_backward:
      return "forward and backward";
  }
  return "";
}

std::string what_ran(const parallel::PipelineOperation& operation) {
  std::string text = fmt::format("{}: micro-batch {}, chunk {}", name_of(operation.kind),
                                 operation.pass.micro_batch, operation.pass.stage);
  if (operation.kind == OperationKind::forward_backward) {
    text += fmt::format("; {}, {}", operation.paired.micro_batch, operation.paired.stage);
  }
  return text;
}

// Whether the ranks of a group have the same weights: under DualPipe the other copy of the stage
// has the group too, and what it exchanges is of both.
bool has_same_weights(parallel::GroupKind kind) {
  using parallel::GroupKind;
  return kind == GroupKind::data || kind == GroupKind::data_context ||
         kind == GroupKind::expert_data;
}

}  // namespace

LayoutResult make_layout_result(training::TrainingJob job, GpuRoom room) {
  LayoutResult result;
  result.job = std::move(job);
  result.room = std::move(room);
  const model::Model& model = *result.job.model;
  const parallel::LayoutRequest& request = result.job.layout;
  training::check_decoder(result.job);
  training::check_job(result.job);
  result.chunks = parallel::stages_of(model, request);
  result.model_flops = model::model_flops(model, static_cast<double>(request.sequence_length),
                                          model.moe ? model.moe->top_k : 0, result.chunks.mtp());
  check_operations(request.shape());
  result.schedule = parallel::make_schedule(request.shape());
  std::vector<double> flops;
  for (const parallel::PipelineChunk& chunk : result.chunks.chunks) {
    flops.push_back(forward_flops(model, request, chunk, result.chunks.mtp()));
  }
  check_work(flops, result.schedule.shape.micro_batches);
  result.run = parallel::run_schedule(result.schedule, times_of(flops));
  for (const auto& name : parallel::group_names) {
    const bool both = result.job.shards().stage_copies > 1 && has_same_weights(name.value);
    const int size = request.sizes.group_size(name.value) * (both ? 2 : 1);
    const int domain = result.job.ranks_per_domain;
    result.groups.push_back({name.value, size, request.sizes.gpus / size,
                             both ? request.sizes.mirrored_domains_touched(name.value, domain)
                                  : request.sizes.domains_touched(name.value, domain),
                             both});
  }
  for (int rank = 0; rank < request.sizes.pipeline; ++rank) {
    result.stages.push_back(stage_figures(result, flops, rank));
  }
  set_memory(result);
  return result;
}

std::vector<std::vector<int>> LayoutResult::members(const GroupFigures& group) const {
  const parallel::ParallelLayout& layout = job.layout.sizes;
  return group.both_copies ? layout.mirrored_groups(group.kind) : layout.groups(group.kind);
}

Bytes LayoutResult::most_memory() const {
  Bytes most;
  for (const StageFigures& stage : stages) most = std::max(most, stage.memory.total());
  return most;
}

std::string lighter_options_that_fit(const LayoutResult& result) {
  const std::string modules =
      result.job.model->latent ? "layernorm,moe_act,mla_up_proj" : "layernorm,moe_act";
  for (const std::string& recompute : {modules, std::string("full")}) {
    for (const int moment_bytes : {4, 2}) {
      LayoutResult lighter = result;
      lighter.job.recompute = model::parse_recompute(recompute, "--recompute");
      lighter.job.states.moment_bytes = moment_bytes;
      // Whole layers recomputed leave nothing to offload.
      const bool drops_offload =
          lighter.job.offload.modules != 0 && recompute == std::string("full");
      if (drops_offload) lighter.job.offload = {};
      set_memory(lighter);
      if (!lighter.fits()) continue;
      return "--recompute " + recompute + (drops_offload ? " --offload none" : "") +
             (moment_bytes == 2 ? " --optimizer-moments bf16" : "");
    }
  }
  return "";
}

std::string layout_timeline(const LayoutResult& result) {
  const std::vector<int> gpus =
      result.job.layout.sizes.groups(parallel::GroupKind::pipeline).front();
  engine::Timeline timeline;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const std::vector<parallel::OperationSpan>& spans = result.run.ranks[rank].spans;
    for (std::size_t at = 0; at < spans.size(); ++at) {
      const parallel::PipelineOperation& operation = result.schedule.ranks[rank][at];
      timeline.push_back({gpus[rank], "compute", what_ran(operation), name_of(operation.kind), -1,
                          spans[at].start, spans[at].end - spans[at].start});
    }
  }
  return report::chrome_trace(
      timeline, fmt::format("moesim layout {} {}", result.job.typed.model,
                            name_in(parallel::schedule_names, result.schedule.shape.kind)));
}

}  // namespace moesim::tool
