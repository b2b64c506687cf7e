#include "tools/moesim/train/train_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/formats/json_text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "sim/training/prices/exchange_prices.hpp"
#include "tools/moesim/bands/run_cost.hpp"
#include "tools/moesim/bands/unmeasured_pair.hpp"
#include "tools/moesim/rows/host_times.hpp"
#include "tools/moesim/rows/part_columns.hpp"
#include "tools/moesim/rows/routing_cells.hpp"
#include "tools/moesim/train/train_losses.hpp"
#include "tools/moesim/train/train_warnings.hpp"

namespace moesim::tool {
namespace {

using training::TrainingJob;
using training::TrainingStep;
using Lines = std::vector<std::vector<std::string>>;

// Three digits: "83.9 s", "812 ms".
std::string duration(double us) {
  const auto three = [](double value, const char* unit) {
    return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, unit);
  };
  if (us < 1e3) return three(us, "us");
  return us < 1e6 ? three(us / 1e3, "ms") : three(us / 1e6, "s");
}

std::string heading(const TrainingJob& job, const TrainingStep& step) {
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  std::string text = fmt::format("{} on {} x {} ({}): TP {} x CP {} x DP {} x PP {}",
                                 job.typed.model, sizes.gpus, job.gpu_name(), job.typed.cluster,
                                 sizes.tensor, sizes.context, sizes.data(), sizes.pipeline);
  if (sizes.virtual_pipeline > 1) text += fmt::format(", VP {}", sizes.virtual_pipeline);
  if (job.model->moe) {
    text += fmt::format("; experts: ETP {} x EP {} x EDP {}, {}", sizes.expert_tensor, sizes.expert,
                        sizes.expert_data(), job.typed.dispatcher);
  }
  return text + fmt::format(
                    "\nglobal batch {:.0f} sequences, {:.0f} tokens: {} micro-batch{} of {} per "
                    "pipeline; {}\n",
                    step.tokens / static_cast<double>(job.layout.sequence_length), step.tokens,
                    step.micro_batches, step.micro_batches == 1 ? "" : "es", job.layout.micro_batch,
                    model::name_of(job.states.precision));
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

std::string router_text(const TrainingJob& job) {
  const training::DrawnRouting& drawn = *job.routing;
  const routing::RouterConfig& router = drawn.router;
  std::string text = router.name();
  if (router.has_capacity()) {
    text += fmt::format(", capacity factor {} ({})", router.capacity_factor.text(),
                        routing::name_of(router.capacity_convention));
    if (router.capacity_scope == routing::CapacityScope::group) text += " of the group";
    text += router.pads_exchange() ? ", padded" : ", not padded";
  } else {
    text += ", no capacity";
  }
  for (const auto& [option, value] : drawn.rare_options) {
    if (!is_absent(value)) text += fmt::format(", {} {}", option, report::text_of(value));
  }
  return text + fmt::format("; {}", drawn.scores.name());
}

std::string steps_text(const TrainingJob& job, const training::RoutingFigures& figures) {
  std::string text = taken_steps_text(figures.taken_steps, figures.recorded_steps);
  if (figures.taken_steps.size() == 1) return text;
  return text + (job.routing->draws == training::RoutingDraws::per_layer
                     ? ": the mean step"
                     : ", one micro-batch after another");
}

std::string recorded_text(const TrainingJob& job, const training::RoutingFigures& figures) {
  std::string text = steps_text(job, figures);
  if (figures.taken_ranks == figures.recorded_ranks) return text;
  return text + fmt::format("; ranks 1 to {} of {}, the same routing in all groups",
                            figures.taken_ranks, figures.recorded_ranks);
}

// What routing lost and what its imbalance costs.
void add_routing(const TrainingJob& job, const TrainingStep& step,
                 const std::optional<uncertainty::LossBand>& loss_band, Lines& lines) {
  const training::RoutingFigures& figures = *step.routing;
  lines.push_back({"router", router_text(job)});
  if (figures.recorded_steps > 0) lines.push_back({"trace", recorded_text(job, figures)});
  add_loss_lines(job, step, loss_band, lines);
  lines.push_back(
      {"experts",
       fmt::format("{:.3f} x balance on the busiest rank of a layer, p99 {:.3f}, at most {:.3f}",
                   figures.mean_load, figures.p99_load, figures.largest_load)});
  if (step.rank_capacity) {
    const training::RankCapacityFigures& rank = *step.rank_capacity;
    lines.push_back(
        {"rank capacity",
         fmt::format("{:.0f} rows, {:.3f} x balance: {} of steps overflow (1 % at {:.3f}), {} more "
                     "each",
                     rank.rows, rank.load, percent(rank.overflow_chance), rank.load_for_one_percent,
                     duration(rank.rerun_us))});
  }
  const double more = step.step_us / step.balanced_step_us - 1;
  lines.push_back({"uneven load", fmt::format("{:+.1f} % of step time: {} with forced balance",
                                              100 * more, duration(step.balanced_step_us))});
}

// On the host, of the GPU that has most there.
Bytes offloaded(const TrainingStep& step) {
  Bytes most;
  for (const model::StageMemory& memory : step.memory) most = std::max(most, memory.offloaded);
  return most;
}

bool drops_routes(const TrainingJob& job) { return job.routing && job.routing->router.drops; }

// What the layout's depths of multi-token prediction have beside the model: "" without.
std::string depths_text(const TrainingJob& job) {
  model::StageContent depths;
  depths.mtp_depths = job.layout.stages ? job.layout.stages->mtp() : 0;
  if (depths.mtp_depths == 0) return "";
  depths.embedding_beside = true;  // no copy of the model's
  const model::Model& model = *job.model;
  const model::StageParameters more =
      model::stage_parameters(model, depths, {}, model.moe ? model.moe->experts : 0);
  return fmt::format("; {:.3g} billion more in {:g} depth{} of prediction",
                     (more.dense + more.expert) / 1e9, depths.mtp_depths,
                     depths.mtp_depths == 1 ? "" : "s");
}

std::string parameters_text(const TrainingJob& job) {
  const model::Model& model = *job.model;
  const double total =
      static_cast<double>(model.total_parameters(model.moe ? model.moe->experts : 0));
  if (!model.moe) return fmt::format("{:.4g} billion{}", total / 1e9, depths_text(job));
  return fmt::format(
      "{:.4g} billion, {:.3g} billion of them used by a token, with the input embedding{}",
      total / 1e9, static_cast<double>(model.active_parameters(job.experts_per_token())) / 1e9,
      depths_text(job));
}

std::string figures(const TrainingJob& job, const TrainingStep& step, const TrainBand& band) {
  const double per_day = tokens_per_day(step);
  const double most = step.peak_memory().gib();
  const double capacity = job.profile->device().hbm_bytes.gib();
  const MemoryRoom room = room_of(job, step);
  Lines lines = {
      {"parameters", parameters_text(job)},
      {"step", duration(step.step_us)},
      {"speed", fmt::format("{:.0f} tokens/s/GPU, {:.3g} tokens per day",
                            step.tokens_per_second_per_gpu, per_day)},
      {"model FLOPs",
       fmt::format("{:.0f} TFLOP/s/GPU, {:.1f} % of the bf16 peak (MFU){}{}", step.tflops_per_gpu,
                   100 * step.mfu,
                   job.states.precision == model::Precision::bf16
                       ? ""
                       : fmt::format("; products in {} have a higher one",
                                     model::name_of(job.states.precision)),
                   // Megatron's definition takes k experts of every token.
                   drops_routes(job) ? "; counted as if no route were dropped" : "")},
      {"cost", cost_text(band.cost, step)},
      {"bubble",
       fmt::format("{:.1f} % of the pipeline, mean of its ranks, by the priced times of stages",
                   100 * step.bubble_share)},
      {"memory", fmt::format("{:.1f} GiB on the fullest rank, of {:.4g} GiB{}", most, capacity,
                             room == MemoryRoom::none    ? ": DOES NOT FIT"
                             : room == MemoryRoom::tight ? ": TIGHT, libraries need some too"
                                                         : "")}};
  if (job.offload.modules != 0) {
    lines.push_back(
        {"host memory", fmt::format("{:.1f} GiB for each GPU, offloaded: {}", offloaded(step).gib(),
                                    model::name_of(job.offload))});
  }
  if (const std::string kept = kept_mfu_text(job, step); !kept.empty()) {
    lines.insert(lines.begin() + 4, {"", kept});
  }
  if (step.routing) {
    add_routing(job, step, band.loss, lines);
  } else if (job.model->moe) {
    lines.push_back(
        {"experts", job.capacity_factor > 0
                        ? fmt::format("padded to {:g} x balance", job.capacity_factor)
                        : fmt::format("{:.3f} x balance on the fullest rank ({})", step.imbalance,
                                      job.expert_load > 0 ? "given" : "random logits")});
  }
  return report::align(lines, {false, false});
}

std::string part_table(const TrainingJob& job, const TrainingStep& step) {
  // Beside drawn routing, what the same part takes with forced balance.
  const bool beside = step.routing && step.balanced_step_us > 0;
  Lines lines = {{"part of the step", "time", "share"}};
  if (beside) lines.front().emplace_back("forced balance");
  for (const auto& part : training::part_names) {
    const auto place = static_cast<std::size_t>(part.value);
    const double us = step.parts[place];
    const double balanced_us = step.balanced_parts[place];
    if (us <= 0 && (!beside || balanced_us <= 0)) continue;
    lines.push_back({part_label(job, part.value), duration(us),
                     fmt::format("{:.1f} %", 100 * us / step.step_us)});
    if (beside) lines.back().push_back(duration(balanced_us));
  }
  std::string text =
      report::align(lines, {false, true, true, true}) +
      fmt::format("  of pipeline rank {}, which computes longest\n", step.busiest_rank);
  if (host_limits(step.parts[static_cast<std::size_t>(training::TrainingPart::host)],
                  step.step_us)) {
    text += fmt::format(
        "  the host limits: what the GPU does faster does not shorten the step; try\n  {}\n",
        host_remedy);
  }
  return text;
}

std::string memory_table(const TrainingStep& step) {
  Lines lines = {{"pipeline rank", "weights", "gradients", "optimizer", "activations", "logits",
                  "buffers", "GiB in all"}};
  for (std::size_t rank = 0; rank < step.memory.size(); ++rank) {
    const model::StageMemory& memory = step.memory[rank];
    std::vector<std::string> line = {fmt::format("{}", rank)};
    for (const Bytes part : {memory.weights, memory.gradients, memory.optimizer,
                             memory.activations + memory.recomputed, memory.logits,
                             memory.exchange_buffers, memory.total()}) {
      line.push_back(fmt::format("{:.2f}", part.gib()));
    }
    lines.push_back(line);
  }
  return report::align(lines, std::vector<bool>(lines.front().size(), true));
}

// Which of the exchanges of rows, and of the dense gradients and weights among all their replicas,
// go by what was measured on the cluster: one line, or none.
std::string measured_exchanges(const TrainingJob& job) {
  using parallel::GroupKind;
  using profile::Collective;
  if (job.cluster->exchanges.empty()) return "";
  const training::ExchangePrices prices(job);
  std::vector<std::string> found;
  const auto add = [&](const char* what, Collective kind, GroupKind group) {
    const std::string basis = prices.measured(kind, group);
    if (!basis.empty()) found.push_back(fmt::format("{} ({}) {}", what, name_of(kind), basis));
  };
  if (!job.dispatcher) add("dispatch and combine", Collective::all_to_all, GroupKind::expert);
  add("gradients", job.states.zero == 0 ? Collective::all_reduce : Collective::reduce_scatter,
      GroupKind::data_context);
  if (job.states.zero > 0) add("parameters", Collective::all_gather, GroupKind::data_context);
  return found.empty() ? "" : fmt::format("exchanges: {}\n", fmt::join(found, "; "));
}

std::string basis(const TrainingJob& job) {
  std::string dispatcher = training::ExchangePrices(job).dispatcher_provenance();
  if (!dispatcher.empty()) dispatcher.insert(0, "; ");
  return fmt::format(
      "based on: curves of {}; links of {}{}\n{}"
      "assumed: {}{} gradients; {}memory of libraries is left out\n",
      job.typed.profile, job.typed.cluster, dispatcher, measured_exchanges(job),
      assumed_host_text(job.host), job.states.gradient_bytes == 2 ? "bf16" : "fp32",
      job.model->linear ? "how fast the kernels of linear attention are, which no curve is of; "
                        : "");
}

Cell whole(std::int64_t value) { return value; }

Cell capacity_factor(const TrainingJob& job) {
  if (job.routing) {
    const routing::RouterConfig& router = job.routing->router;
    return router.has_capacity() ? Cell(router.capacity_factor) : Cell();
  }
  return job.capacity_factor > 0 ? Cell(job.capacity_factor) : Cell();
}

// Only with drawn routing: other rows keep their columns.
void add_routing(const TrainingJob& job, const TrainingStep& step, NamedCells& row) {
  const training::DrawnRouting& drawn = *job.routing;
  const routing::RouterConfig& router = drawn.router;
  const training::RoutingFigures& figures = *step.routing;
  for (auto& [name, cell] : routing_cells(drawn, figures)) row.add(name, std::move(cell));
  if (figures.recorded_steps > 0) {
    row.add("trace_step", drawn.trace_step > 0 ? whole(drawn.trace_step) : Cell());
    row.add("recorded_steps", whole(figures.recorded_steps));
    row.add("taken_steps", whole(static_cast<std::int64_t>(figures.taken_steps.size())));
  }
  const std::string basis = routing::loss_basis(drawn.scores, router);
  if (!basis.empty()) row.add("loss_basis", basis);
  row.add("failed", figure_cell(figures.loss.failed));
  row.add("partial", figure_cell(figures.loss.partial));
  row.add("lost_mass", figure_cell(figures.loss.lost_mass));
  row.add("unrouted", figure_cell(figures.loss.unrouted));
  row.add("residual_loss", figure_cell(figures.loss.residual_loss));
  row.add("counted_loss", figure_cell(study::counted_loss(job, step)));
  row.add("padded", figure_cell(figures.loss.padded));
  row.add("load_p99", figure_cell(figures.p99_load));
  row.add("load_max", figure_cell(figures.largest_load));
  row.add("expert_load_mean", figures.sampled ? Cell() : figure_cell(figures.mean_expert_load));
  row.add("balanced_step_ms",
          step.balanced_step_us > 0 ? figure_cell(step.balanced_step_us / 1e3) : Cell());
  for (auto& [name, cell] : rare_routing_cells(drawn)) row.add(name, std::move(cell));
  if (!step.rank_capacity) return;
  const training::RankCapacityFigures& rank = *step.rank_capacity;
  row.add("rank_capacity", figure_cell(drawn.rank_capacity));
  row.add("rank_capacity_rows", figure_cell(rank.rows));
  row.add("overflow_chance", figure_cell(rank.overflow_chance));
  row.add("rank_capacity_for_one_percent", figure_cell(rank.load_for_one_percent));
  row.add("rerun_step_ms", figure_cell(rank.rerun_us / 1e3));
}

// Columns in the order of the first versions, with figures of the job in between. Options that came
// later follow behind the figures.
constexpr const char* job_columns[] = {
    "model",
    "profile",
    "cluster",
    "gpus",
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "expert_parallel",
    "expert_tensor_parallel",
    "data_parallel",
    "dispatcher",
    "capacity_factor",
    "precision",
    "recompute",
    "expert_load",
    "redundant_experts",
    "zero",
    "optimizer_instances",
    "ranks_per_domain",
    "optimizer_moments",
    "gradients",
    "fused_experts",
    "attention_precision",
    "head_precision",
    "context_method",
    "pipeline_schedule",
    "micro_batch_group",
    "pipeline_layout",
    "ep_overlap",
    "cuda_graphs",
    "launch_us",
    "host_read_us",
    "step_overhead_ms",
    "global_batch",
    "micro_batch",
    "micro_batches",
    "sequence_length",
};

Cell job_cell(const TrainingJob& job, const std::string& column) {
  if (column == "data_parallel") return whole(job.layout.sizes.data());
  if (column == "micro_batches") return whole(job.layout.micro_batches());
  if (column == "capacity_factor") return capacity_factor(job);
  for (const job::JobOption& option : job::job_options()) {
    if (option.column() == column) return option.value(job);
  }
  return {};
}

void add_later_options(const TrainingJob& job, const TrainingStep& step, NamedCells& row) {
  for (const job::JobOption& option : job::job_options()) {
    const auto known = std::find(std::begin(job_columns), std::end(job_columns), option.column());
    if (known != std::end(job_columns) || !option.in_rows_of(job)) continue;
    row.add(option.column(), option.value(job));
    if (option.name == "offload") row.add("offloaded_gib", figure_cell(offloaded(step).gib()));
  }
}

// "61.5 58.2": of each pipeline rank, in GiB.
std::string memory_by_rank(const TrainingStep& step) {
  std::string text;
  for (const model::StageMemory& memory : step.memory) {
    text += fmt::format("{}{:.2f}", text.empty() ? "" : " ", memory.total().gib());
  }
  return text;
}

NamedCells row_of(const TrainingJob& job, const TrainingStep& step) {
  NamedCells row;
  for (const char* column : job_columns) row.add(column, job_cell(job, column));
  row.add("tokens", figure_cell(step.tokens));
  row.add("step_ms", figure_cell(step.step_us / 1e3));
  row.add("tokens_per_s_per_gpu", figure_cell(step.tokens_per_second_per_gpu));
  row.add("tflops_per_gpu", figure_cell(step.tflops_per_gpu));
  row.add("mfu", figure_cell(step.mfu));
  row.add("gpu_hours_per_1e12_tokens", figure_cell(step.gpu_hours_per_1e12_tokens()));
  row.add("bubble_share", figure_cell(step.bubble_share));
  row.add("imbalance", figure_cell(step.imbalance));
  row.add("memory_gib", figure_cell(step.peak_memory().gib()));
  row.add("memory_gib_by_rank", memory_by_rank(step));
  row.add("fits_memory", step.peak_memory() <= job.profile->device().hbm_bytes);
  for (const auto& part : training::part_names) {
    if (part.value == training::TrainingPart::reruns && !step.rank_capacity) continue;
    if (part.value == training::TrainingPart::offload && job.offload.modules == 0) continue;
    row.add(part_column(part.name),
            figure_cell(step.parts[static_cast<std::size_t>(part.value)] / 1e3));
  }
  add_later_options(job, step, row);
  add_given_host(job.host, row);
  if (step.routing) add_routing(job, step, row);
  return row;
}

}  // namespace

NamedCells training_row(const TrainingJob& job, const TrainingStep& step) {
  return row_of(job, step);
}

NamedCells training_row(const TrainingJob& job, const TrainingStep& step, const TrainBand& band) {
  NamedCells row = row_of(job, step);
  for (auto& [name, cell] : band_cells(band, step)) row.add(name, cell);
  for (auto& [name, cell] : unmeasured_cells(band.band)) row.add(name, cell);
  const std::string warnings = warning_words(
      room_of(job, step), step.parts[static_cast<std::size_t>(training::TrainingPart::host)],
      step.step_us);
  row.add(warnings_column, warnings.empty() ? Cell() : Cell(warnings));
  for (auto& [name, cell] : loss_cells(job, step, band.loss)) row.add(name, cell);
  return row;
}

std::vector<std::string> training_columns(const TrainingJob& job, const TrainingStep& step) {
  std::vector<std::string> columns = row_of(job, step).names;
  columns.emplace_back(warnings_column);
  for (const auto& [name, cell] : loss_cells(job, step, std::nullopt)) columns.push_back(name);
  return columns;
}

std::string rendered_training(const CommandLine& line, const TrainingJob& job,
                              const TrainingStep& step, const TrainBand& band,
                              report::Format format, const RowOf& row_of) {
  if (format == report::Format::table) {
    return heading(job, step) + "\n" + figures(job, step, band) + "\n" + band_text(band, step) +
           "\n" + part_table(job, step) + "\n" + memory_table(step) + "\n" + basis(job);
  }
  const NamedCells row = row_of(line, job, step, band);
  if (format == report::Format::csv) return report::to_csv(row.names, {row.cells});
  nlohmann::ordered_json object = json_row(row.names, row.cells);
  for (const model::StageMemory& memory : step.memory) {
    object["memory_gib_of_rank"].push_back(memory.total().gib());
  }
  return json_text(object, 2) + "\n";
}

std::string part_label(const TrainingJob& job, const training::TrainingPart part) {
  const bool shares = job.model->moe && job.model->moe->shared_ffn > 0;
  if (part != training::TrainingPart::dense_ffn || !shares)
    return name_in(training::part_names, part);
  return job.model->dense_layers() > 0 ? "dense FFN, shared experts" : "shared experts";
}

std::string taken_steps_text(const std::vector<int>& taken, int recorded) {
  if (recorded > 1 && taken.size() == 1) {
    return fmt::format("step {} of {}", taken.front(), recorded);
  }
  std::string all = fmt::format("{} recorded step{}", recorded, recorded == 1 ? "" : "s");
  if (static_cast<int>(taken.size()) == recorded) return all;
  return fmt::format("{} of {}, evenly spread", taken.size(), all);
}

}  // namespace moesim::tool
