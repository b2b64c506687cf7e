#include "tools/moesim/train/layout_row.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "sim/base/contains.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/result_row.hpp"
#include "tools/moesim/bands/run_cost.hpp"
#include "tools/moesim/train/replicas.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {
namespace {

using training::TrainingJob;
using training::TrainingPart;
using training::TrainingStep;

using Cells = std::map<std::string, Cell>;

// Options of a scenario that a training job lacks, each with its default here. Not --fusion,
// --expert-products and --overlap: a job has kernels and an overlap of its own.
constexpr const char* options_of_scenario[] = {"weights", "ir-compute",       "dispatch",
                                               "network", "slow-gpu",         "slow-link",
                                               "jitter",  "overlap-slowdown", "dedup"};

}  // namespace

scenario::Scenario scenario_of(const CommandLine& line) {
  static const char* const taken[] = {"model", "experts", "router",
                                      "top-k", "weights", "router-dialect"};
  scenario::OptionValues values;
  for (const char* option : taken) {
    if (line.has(option)) values[option] = line.get(option);
  }
  scenario::DocumentCache documents;
  return scenario::fill_in(values, documents, scenario::Use::routing);
}

namespace {

void add_options(const CommandLine& line, const TrainingJob& job, const NamedCells& of_train,
                 Cells& cells) {
  const scenario::Scenario scenario = scenario_of(line);
  for (const char* name : options_of_scenario) {
    const scenario::Option& option = scenario::option_named(name);
    cells[option.column] = option.cell(scenario);
  }
  cells["router"] = job.model->moe ? Cell(scenario.router.name()) : Cell(std::string("dense"));
  if (job.model->moe) {
    cells["experts"] = static_cast<std::int64_t>(job.model->moe->experts);
    cells["top_k"] = static_cast<std::int64_t>(job.experts_per_token());
  }
  if (scenario.router.rectification != routing::Rectification::none) {
    cells["ir_compute"] = std::string(rectified_with);
  }
  cells["status"] = std::string("ok");
  cells["mode"] = std::string("train");
  const bool is_full = report::text_of(of_train.cell("recompute")) == "full";
  cells["checkpointing"] = std::string(is_full ? "full" : "none");
  cells["tokens_per_gpu"] = static_cast<std::int64_t>(std::llround(job.tokens_per_rank()));
  cells["replicas"] = static_cast<std::int64_t>(job.routing ? requested_replicas(line) : 1);
}

void add_parts(const TrainingStep& step, Cells& cells) {
  struct Column {
    const char* name;
    std::vector<TrainingPart> parts;
  };
  static const std::vector<Column> columns = {
      {"attention_ms", {TrainingPart::attention}},
      {"dense_ffn_ms", {TrainingPart::dense_ffn}},
      {"router_ms", {TrainingPart::router}},
      {"expert_ms", {TrainingPart::experts}},
      {"exposed_exchange_ms",
       {TrainingPart::tensor, TrainingPart::context, TrainingPart::dispatch,
        TrainingPart::combine}},
      {"gradient_ms", {TrainingPart::gradients, TrainingPart::parameters}},
      {"optimizer_ms", {TrainingPart::optimizer}},
      {"other_ms",
       {TrainingPart::head, TrainingPart::recompute, TrainingPart::offload, TrainingPart::reruns}},
      {"bubble_ms", {TrainingPart::p2p}},
      {"host_ms", {TrainingPart::host}},
  };
  for (const Column& column : columns) {
    double us = 0;
    for (const TrainingPart part : column.parts) us += step.parts[training::at(part)];
    cells[column.name] = figure_cell(us / 1e3);
  }
}

void add_memory(const TrainingStep& step, Cells& cells) {
  const auto fullest = std::max_element(
      step.memory.begin(), step.memory.end(),
      [](const auto& a, const auto& b) { return a.total().count < b.total().count; });
  cells["parameters_gib"] = figure_cell(fullest->weights.gib());
  cells["gradients_gib"] = figure_cell(fullest->gradients.gib());
  cells["optimizer_gib"] = figure_cell(fullest->optimizer.gib());
  cells["activations_gib"] =
      figure_cell((fullest->activations + fullest->recomputed + fullest->logits).gib());
  cells["buffers_gib"] = figure_cell(fullest->exchange_buffers.gib());
}

void add_band(const TrainingStep& step, const TrainBand& band, Cells& cells) {
  const study::StepTimes times = study::step_times(band.band, step);
  cells["step_ms_p05"] = figure_cell(times.p05_ms);
  cells["step_ms_p50"] = figure_cell(times.likely_ms);
  cells["step_ms_p95"] = figure_cell(times.p95_ms);
  cells["narrower_with"] = band.terms.front().remedy;
}

void add_losses(const TrainingStep& step, Cells& cells) {
  if (!step.routing) return;
  for (const study::LossFigure& figure : study::loss_figures()) {
    cells[figure.name] = figure.cell(step.routing->loss);
  }
}

}  // namespace

NamedCells layout_row(const CommandLine& line, const TrainingJob& job, const TrainingStep& step,
                      const TrainBand& band) {
  const NamedCells of_train = training_row(job, step, band);
  Cells cells;
  add_options(line, job, of_train, cells);
  add_parts(step, cells);
  add_memory(step, cells);
  add_band(step, band, cells);
  add_losses(step, cells);
  cells["tokens_per_day"] = figure_cell(tokens_per_day(step));
  cells["provenance"] = "curves of " + job.typed.profile + ", links of " + job.typed.cluster;
  NamedCells row;
  const auto add = [&](const std::string& name) {
    const auto found = cells.find(name);
    row.add(name, of_train.has(name)     ? of_train.cell(name)
                  : found != cells.end() ? found->second
                                         : Cell());
  };
  for (const study::Column& column : study::result_columns()) {
    add(column.name);
    if (column.name == "other_ms") add("bubble_ms");
  }
  for (const std::string& name : of_train.names) {
    if (!row.has(name)) add(name);
  }
  return row;
}

}  // namespace moesim::tool
