#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "sim/base/formats/json_text.hpp"
#include "sim/job/job_options.hpp"
#include "tools/moesim/layout/layout_result.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {
namespace {

using Lines = std::vector<std::vector<std::string>>;

constexpr const char* time_rules =
    "stage times are proportional to the forward FLOPs of their layers: 1 us/GFLOP of F, B, W each";

std::string memory_rules(const training::TrainingJob& job) {
  constexpr std::array sharded = {"nothing sharded", "Adam sharded", "Adam and gradients sharded",
                                  "Adam, gradients and weights sharded"};
  const model::StateRules& states = job.states;
  // Without a GPU none is transposed.
  const bool may_be_two = !job.profile && model::gemm_weight_bytes(states.precision, true) >
                                              model::gemm_weight_bytes(states.precision, false);
  std::string text =
      fmt::format("GEMMs in {}{}, {} gradients, {} (ZeRO {})", model::name_of(states.precision),
                  may_be_two ? " with one copy of weights (two on Hopper: --profile)" : "",
                  states.gradient_bytes == 2 ? "bf16" : "fp32",
                  sharded.at(static_cast<std::size_t>(states.zero)), states.zero);
  if (job.states.moment_bytes == 2) text += " with bf16 moments";
  text += fmt::format(", recomputed: {}", model::name_of(job.recompute));
  if (job.offload.modules != 0) {
    text += fmt::format(", offloaded: {}", model::name_of(job.offload));
  }
  return text + "; without what libraries reserve";
}

std::string percent(double share) { return fmt::format("{:.2f}", share * 100); }

std::string gib(Bytes bytes) { return fmt::format("{:.2f}", bytes.gib()); }

std::string domains_text(const parallel::DomainsTouched& domains) {
  return domains.least == domains.most ? fmt::format("{}", domains.most)
                                       : fmt::format("{} to {}", domains.least, domains.most);
}

std::string chunks_text(const StageFigures& stage) {
  std::vector<std::string> texts;
  for (const parallel::PipelineChunk& chunk : stage.chunks) {
    texts.push_back(chunk.text().empty() ? "-" : chunk.text());
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

// "256 GPUs: TP 2 x CP 1 x DP 16 x PP 8; experts ETP 1 x EP 32 x EDP 1 x PP 8"
std::string heading(const LayoutResult& result) {
  const parallel::LayoutRequest& request = result.job.layout;
  const parallel::ParallelLayout& layout = request.sizes;
  const parallel::ScheduleShape& shape = result.schedule.shape;
  std::string text = fmt::format("{} on {} GPU{}: TP {} x CP {} x DP {} x PP {}",
                                 result.job.typed.model, layout.gpus, layout.gpus == 1 ? "" : "s",
                                 layout.tensor, layout.context, layout.data(), layout.pipeline);
  if (result.job.model->moe) {
    text += fmt::format("; experts: ETP {} x EP {} x EDP {} x PP {}", layout.expert_tensor,
                        layout.expert, layout.expert_data(), layout.pipeline);
  }
  const std::int64_t sequences = request.micro_batch * shape.micro_batches * layout.data();
  text += fmt::format("\n{} sequences of {} tokens per step: {} micro-batches of {} per pipeline\n",
                      sequences, request.sequence_length, shape.micro_batches, request.micro_batch);
  return text + fmt::format("pipeline layout {}\n", result.chunks.text());
}

std::string group_table(const LayoutResult& result) {
  Lines lines{{"group", "ranks", "groups",
               fmt::format("domains of {}", result.job.ranks_per_domain),
               "what its ranks share or exchange"}};
  for (const GroupFigures& group : result.groups) {
    const auto& name = *std::find_if(parallel::group_names.begin(), parallel::group_names.end(),
                                     [&](const auto& known) { return known.value == group.kind; });
    lines.push_back({name.name, fmt::format("{}", group.size), fmt::format("{}", group.count),
                     domains_text(group.domains),
                     std::string(name.meaning) + (group.both_copies ? "; of both copies" : "")});
  }
  return report::align(lines, {false, true, true, true, false});
}

std::string stage_table(const LayoutResult& result) {
  Lines lines{{"pp rank", "chunks", "layers", "MoE", "F TFLOP", "held", "until W", "idle %",
               "states GiB", "activations GiB", "logits GiB", "memory GiB"}};
  for (std::size_t rank = 0; rank < result.stages.size(); ++rank) {
    const StageFigures& stage = result.stages[rank];
    lines.push_back(
        {fmt::format("{}", rank), chunks_text(stage), fmt::format("{}", stage.layers),
         fmt::format("{}", stage.moe_layers), fmt::format("{:.3f}", stage.forward_flops * 1e-12),
         fmt::format("{}", stage.held), fmt::format("{}", stage.held_until_weight_gradient),
         percent(stage.idle_share), gib(stage.memory.states()),
         gib(stage.memory.activations + stage.memory.recomputed), gib(stage.memory.logits),
         gib(stage.memory.total())});
  }
  std::vector<bool> right(lines.front().size(), true);
  right[1] = false;
  return report::align(lines, right);
}

std::string schedule_line(const LayoutResult& result) {
  const parallel::ScheduleShape& shape = result.schedule.shape;
  std::string text = fmt::format("schedule {}", name_in(parallel::schedule_names, shape.kind));
  if (shape.virtual_stages > 1) {
    text += fmt::format(", {} chunks per rank, groups of {} micro-batches", shape.virtual_stages,
                        shape.group_size());
  }
  if (shape.expert_overlap) text += ", exchanges of experts overlapped";
  if (shape.has_pairs()) text += "; a pair of passes takes the sum of its parts, nothing is gained";
  return text +
         fmt::format(
             "\nbubble {} % of the ranks' time, of stages that take the time of their FLOPs; "
             "moesim train prices them, its bubble is another\n",
             percent(result.run.bubble_share()));
}

std::string work_line(const LayoutResult& result) {
  const model::ModelFlops& flops = result.model_flops;
  return fmt::format(
      "model FLOPs {:.2f} GFLOP per token, forward and backward, of them {:.2f} in "
      "core attention\n",
      flops.total * 1e-9, flops.core_attention * 1e-9);
}

// Whether the fullest rank fits into the GPU, and if not, what would make it.
std::string memory_line(const LayoutResult& result) {
  const GpuRoom& room = result.room;
  if (room.name.empty()) return "";
  const Bytes most = result.most_memory();
  std::string text = fmt::format("the fullest rank needs {} of {} GiB of {}: ", gib(most),
                                 gib(room.memory), room.name);
  if (result.fits()) {
    return text + fmt::format("fits, {} GiB left for libraries\n",
                              gib(Bytes(room.memory.count - most.count)));
  }
  const std::string lighter = lighter_options_that_fit(result);
  return text + (lighter.empty() ? "does not fit, nor with --recompute full and "
                                   "--optimizer-moments bf16: divide it over more ranks\n"
                                 : fmt::format("does not fit; {} would\n", lighter));
}

// What the table's columns mean, and what its figures are based on.
std::string legend(const training::TrainingJob& job) {
  return fmt::format(
      "\nheld: the most chunks whose activations a rank keeps; until W: with those that wait for "
      "their weight\ngradient, as memory counts them\ntime: {}\nmemory: {}\n",
      time_rules, memory_rules(job));
}

std::string member_table(const LayoutResult& result) {
  Lines lines{{"group", "number", "ranks"}};
  for (const GroupFigures& group : result.groups) {
    const auto groups = result.members(group);
    for (std::size_t at = 0; at < groups.size(); ++at) {
      lines.push_back({name_in(parallel::group_names, group.kind), fmt::format("{}", at),
                       fmt::format("{}", fmt::join(groups[at], " "))});
    }
  }
  return report::align(lines, {false, true, false});
}

std::string member_csv(const LayoutResult& result) {
  std::vector<report::CellRow> rows;
  for (const GroupFigures& group : result.groups) {
    const auto groups = result.members(group);
    for (std::size_t at = 0; at < groups.size(); ++at) {
      rows.push_back({std::string(name_in(parallel::group_names, group.kind)),
                      static_cast<std::int64_t>(at),
                      fmt::format("{}", fmt::join(groups[at], " "))});
    }
  }
  return report::to_csv({"group", "number", "ranks"}, rows);
}

Cell whole(std::int64_t value) { return value; }

NamedCells job_cells(const LayoutResult& result) {
  const parallel::LayoutRequest& request = result.job.layout;
  const parallel::ParallelLayout& layout = request.sizes;
  const parallel::ScheduleShape& shape = result.schedule.shape;
  NamedCells job;
  job.add("model", result.job.typed.model);
  job.add("gpus", whole(layout.gpus));
  job.add("tensor_parallel", whole(layout.tensor));
  job.add("context_parallel", whole(layout.context));
  job.add("data_parallel", whole(layout.data()));
  job.add("pipeline_parallel", whole(layout.pipeline));
  job.add("virtual_pipeline", whole(layout.virtual_pipeline));
  job.add("expert_tensor_parallel", whole(layout.expert_tensor));
  job.add("expert_parallel", whole(layout.expert));
  job.add("expert_data_parallel", whole(layout.expert_data()));
  job.add("sequence_length", whole(request.sequence_length));
  job.add("micro_batch", whole(request.micro_batch));
  job.add("global_batch", whole(request.micro_batch * shape.micro_batches * layout.data()));
  job.add("micro_batches", whole(shape.micro_batches));
  job.add("pipeline_schedule", std::string(name_in(parallel::schedule_names, shape.kind)));
  job.add("micro_batch_group", shape.virtual_stages > 1 ? whole(shape.group_size()) : Cell());
  job.add("ep_overlap", std::string(shape.expert_overlap ? "on" : "off"));
  job.add("pipeline_layout", result.chunks.text());
  for (const char* name : {"context-method", "zero", "optimizer-instances"}) {
    const job::JobOption& option = job::job_option_named(name);
    job.add(option.column(), option.value(result.job));
  }
  for (const job::JobOption& option : job::job_options()) {
    const bool is_kept = option.section == job::Section::precision && option.in_layout;
    if (is_kept && option.in_rows_of(result.job)) {
      job.add(option.column(), option.value(result.job));
    }
  }
  job.add("expert_load", figure_cell(result.expert_load()));
  job.add("profile", result.room.name);
  job.add("model_gflop_per_token", figure_cell(result.model_flops.total * 1e-9));
  job.add("bubble_share", figure_cell(result.run.bubble_share()));
  job.add("ranks_per_domain", whole(result.job.ranks_per_domain));
  return job;
}

NamedCells stage_cells(const LayoutResult& result, std::size_t rank) {
  const StageFigures& stage = result.stages[rank];
  NamedCells cells;
  cells.add("pipeline_rank", whole(static_cast<std::int64_t>(rank)));
  cells.add("chunks", chunks_text(stage));
  cells.add("layers", whole(stage.layers));
  cells.add("moe_layers", whole(stage.moe_layers));
  cells.add("forward_tflop", figure_cell(stage.forward_flops * 1e-12));
  cells.add("held_chunks", whole(stage.held));
  cells.add("held_chunks_until_weight_gradient", whole(stage.held_until_weight_gradient));
  cells.add("idle_share", figure_cell(stage.idle_share));
  const model::StageMemory& memory = stage.memory;
  cells.add("weights_gib", memory.weights.gib());
  cells.add("gradients_gib", memory.gradients.gib());
  cells.add("optimizer_gib", memory.optimizer.gib());
  cells.add("activations_gib", memory.activations.gib());
  cells.add("recomputed_gib", memory.recomputed.gib());
  cells.add("logits_gib", memory.logits.gib());
  cells.add("buffers_gib", memory.exchange_buffers.gib());
  cells.add("memory_gib", memory.total().gib());
  if (result.job.offload.modules != 0) cells.add("offloaded_gib", memory.offloaded.gib());
  const GpuRoom& room = result.room;
  cells.add("fits_memory", room.name.empty() ? Cell() : Cell(memory.total() <= room.memory));
  return cells;
}

std::string stage_csv(const LayoutResult& result) {
  const NamedCells job = job_cells(result);
  std::vector<std::string> columns;
  std::vector<report::CellRow> rows;
  for (std::size_t rank = 0; rank < result.stages.size(); ++rank) {
    const NamedCells stage = stage_cells(result, rank);
    columns = job.names;
    columns.insert(columns.end(), stage.names.begin(), stage.names.end());
    rows.push_back(job.cells);
    rows.back().insert(rows.back().end(), stage.cells.begin(), stage.cells.end());
  }
  return report::to_csv(columns, rows);
}

nlohmann::ordered_json json_of(const LayoutResult& result, bool list_groups) {
  const NamedCells job = job_cells(result);
  nlohmann::ordered_json object = report::to_json(job.names, job.cells);
  object["memory_rules"] = memory_rules(result.job);
  object["time_rules"] = time_rules;
  for (const GroupFigures& group : result.groups) {
    nlohmann::ordered_json entry{{"ranks", group.size},
                                 {"groups", group.count},
                                 {"domains_least", group.domains.least},
                                 {"domains_most", group.domains.most}};
    if (list_groups) entry["members"] = result.members(group);
    object["groups"][name_in(parallel::group_names, group.kind)] = std::move(entry);
  }
  for (std::size_t rank = 0; rank < result.stages.size(); ++rank) {
    const NamedCells stage = stage_cells(result, rank);
    object["stages"].push_back(report::to_json(stage.names, stage.cells));
  }
  return object;
}

}  // namespace

std::string rendered(const LayoutResult& result, report::Format format, bool list_groups) {
  if (format == report::Format::json) return json_text(json_of(result, list_groups), 2) + "\n";
  if (format == report::Format::csv) {
    return list_groups ? member_csv(result) : stage_csv(result);
  }
  return heading(result) + "\n" + group_table(result) + "\n" + stage_table(result) + "\n" +
         schedule_line(result) + work_line(result) + memory_line(result) + legend(result.job) +
         (list_groups ? "\n" + member_table(result) : "");
}

}  // namespace moesim::tool
