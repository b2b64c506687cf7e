#include "sim/report/result_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace moesim::report {
namespace {

constexpr std::array<const char*, study::part_count> part_columns{
    "attention_ms", "dense_ffn_ms",        "router_ms",   "dispatch_combine_ms", "expert_ms",
    "rectify_ms",   "exposed_exchange_ms", "gradient_ms", "optimizer_ms",        "other_ms"};

// Which scenario it is, and whether it could be.
std::vector<Column> option_columns() {
  using enum ColumnKind;
  return {
      {"status", text},
      {"reason", text},
      {"model", text},
      {"profile", text},
      {"cluster", text},
      {"router", text},
      {"priority", text},
      {"weights", text},
      {"fill_order", text},
      {"ir_compute", text},
      {"dispatch", text},
      {"mode", text},
      {"routing", text},
      {"gpus", number},
      {"expert_parallel", number},
      {"experts", number},
      {"top_k", number},
      {"capacity_factor", number},
      {"capacity_convention", text},
      {"capacity_scope", text},
      {"capacity", number},
      {"sequence_length", number},
      {"micro_batch", number},
      {"tokens_per_gpu", number},
      {"checkpointing", text},
      {"zero", number},
      {"network", text},
      {"replicas", number},
      {"seed", number},
  };
}

std::vector<Column> answer_columns() {
  using enum ColumnKind;
  return {
      {"step_ms", number},
      {"step_ms_p05", number},
      {"step_ms_p95", number},
      {"tokens_per_s_per_gpu", number},
      {"failed", number},
      {"partial", number},
      {"lost_mass", number},
      {"fill_failed", number},
      {"failed_attempted", number},
      {"unrouted", number},
      {"residual_loss", number},
      {"padded", number},
      {"duplicate_ir", number},
      {"attention_ms", number},
      {"dense_ffn_ms", number},
      {"router_ms", number},
      {"dispatch_combine_ms", number},
      {"expert_ms", number},
      {"rectify_ms", number},
      {"exposed_exchange_ms", number},
      {"gradient_ms", number},
      {"optimizer_ms", number},
      {"other_ms", number},
      {"exchange_ms", number},
      {"memory_gib", number},
      {"fits_memory", boolean},
      {"provenance", text},
  };
}

// The options that the columns above leave out: a row reproduces itself.
std::vector<Column> late_columns() {
  using enum ColumnKind;
  return {
      {"min_capacity", number},   {"ir_duplicates", text},    {"global_batch", number},
      {"overlap", text},          {"slow_gpu", text},         {"slow_link", text},
      {"jitter", number},         {"overlap_slowdown", text}, {"router_dialect", text},
      {"padding", text},          {"fidelity", text},         {"dedup", text},
      {"expert_placement", text},
  };
}

std::vector<Column> all_columns() {
  std::vector<Column> columns = option_columns();
  for (const std::vector<Column>& more : {answer_columns(), late_columns()}) {
    columns.insert(columns.end(), more.begin(), more.end());
  }
  return columns;
}

// What routing alone has no say in.
bool is_of_the_step(const std::string& name) {
  static const std::vector<std::string> names{
      "dispatch",         "mode",          "sequence_length",
      "micro_batch",      "checkpointing", "zero",
      "network",          "step_ms",       "step_ms_p05",
      "step_ms_p95",      "overlap",       "global_batch",
      "ir_compute",       "exchange_ms",   "memory_gib",
      "provenance",       "fits_memory",   "tokens_per_s_per_gpu",
      "slow_gpu",         "slow_link",     "jitter",
      "overlap_slowdown", "dedup"};
  return std::find(names.begin(), names.end(), name) != names.end() ||
         std::find(part_columns.begin(), part_columns.end(), name) != part_columns.end();
}

void router_cells(const scenario::Scenario& scenario, Cells& cells) {
  const routing::RouterConfig& router = scenario.router;
  cells["experts"] = fmt::format("{}", scenario.experts);
  cells["expert_parallel"] = fmt::format("{}", scenario.expert_parallel);
  cells["top_k"] = fmt::format("{}", router.top_k);
  cells["expert_placement"] = scenario.expert_placement;
  if (router.has_capacity()) {
    cells["capacity_factor"] = router.capacity_factor.text();
    cells["capacity_convention"] = routing::name_of(router.capacity_convention);
    cells["capacity_scope"] = routing::name_of(router.capacity_scope);
    cells["min_capacity"] = fmt::format("{}", router.min_capacity);
    cells["padding"] = routing::name_of_padding(router.pad_to_capacity);
    cells["priority"] = routing::name_of(router.priority);
  }
  // Of a router without capacity it still says what travels beside the tokens.
  if (router.has_capacity() || router.chooses_top_k()) {
    cells["router_dialect"] = routing::name_of(router.dialect);
  }
  cells["weights"] = routing::name_of(router.weights);
  cells["routing"] = scenario.scores.name();
  cells["fidelity"] = routing::name_of(scenario.routing_job().fidelity);
  cells["dispatch"] = scenario::name_of(scenario.dispatch);
  if (!router.counts_known()) cells["dedup"] = scenario::name_of(scenario.dedup);
  if (router.fill_in) cells["fill_order"] = routing::name_of(router.fill_order);
  if (router.rectification != routing::Rectification::none) {
    cells["ir_compute"] = routing::name_of(router.ir_compute);
    cells["ir_duplicates"] = routing::name_of(router.ir_duplicates);
  }
}

void condition_cells(const scenario::Conditions& conditions, Cells& cells) {
  cells["slow_gpu"] = scenario::text_of(conditions.slow_gpus);
  cells["slow_link"] = scenario::text_of(conditions.slow_links);
  cells["jitter"] = fmt::format("{}", conditions.jitter);
  cells["overlap_slowdown"] = scenario::text_of(conditions.overlap);
}

void set_if(Cells& cells, const std::string& name, const std::optional<double>& value) {
  if (value) cells[name] = figure(*value);
}

void add(Cells& cells, const Cells& more) { cells.insert(more.begin(), more.end()); }

std::string column_of(std::string option) {
  std::replace(option.begin(), option.end(), '-', '_');
  return option;
}

}  // namespace

std::string figure(double value) {
  if (!std::isfinite(value)) return "";
  if (value == 0) return "0";  // never "-0"
  return fmt::format("{:.9g}", value);
}

const std::vector<Column>& result_columns() {
  static const std::vector<Column> columns = all_columns();
  return columns;
}

const std::vector<Column>& route_columns() {
  static const std::vector<Column> columns = [] {
    std::vector<Column> kept;
    for (const Column& column : result_columns()) {
      if (!is_of_the_step(column.name)) kept.push_back(column);
    }
    return kept;
  }();
  return columns;
}

Cells option_cells(const scenario::Scenario& scenario) {
  Cells cells;
  cells["model"] = scenario.model_name;
  cells["profile"] = scenario.profile_name;
  cells["cluster"] = scenario.cluster_name;
  cells["router"] = scenario.router.name();
  cells["mode"] = scenario::name_of(scenario.mode);
  cells["gpus"] = fmt::format("{}", scenario.gpus);
  cells["sequence_length"] = fmt::format("{}", scenario.sequence_length);
  cells["micro_batch"] = fmt::format("{}", scenario.micro_batch);
  cells["tokens_per_gpu"] = fmt::format("{}", scenario.tokens_per_gpu);
  cells["network"] = scenario::name_of(scenario.network);
  cells["replicas"] = fmt::format("{}", scenario.replicas);
  cells["seed"] = fmt::format("{}", scenario.seed);
  if (scenario.mode == scenario::Mode::train) {
    cells["checkpointing"] = scenario::name_of(scenario.checkpointing);
    cells["zero"] = fmt::format("{}", scenario.zero);
    cells["overlap"] = scenario::name_of(scenario.overlap);
    cells["global_batch"] =
        fmt::format("{}", scenario.micro_batch * scenario.gpus * scenario.micro_steps);
  }
  if (!scenario.router.is_dense()) router_cells(scenario, cells);
  condition_cells(scenario.conditions, cells);
  return cells;
}

Cells typed_cells(const scenario::OptionValues& values) {
  Cells cells;
  for (const auto& [option, text] : values) cells[column_of(option)] = text;
  return cells;
}

Cells capacity_cells(const routing::RouterConfig& router, std::int64_t capacity) {
  if (!router.has_capacity() && !router.pads_exchange()) return {};
  return {{"capacity", fmt::format("{}", capacity)}};
}

Cells loss_cells(const routing::TokenLoss& loss) {
  Cells cells;
  cells["failed"] = figure(loss.failed);
  cells["partial"] = figure(loss.partial);
  cells["lost_mass"] = figure(loss.lost_mass);
  cells["unrouted"] = figure(loss.unrouted);
  cells["residual_loss"] = figure(loss.residual_loss);
  cells["padded"] = figure(loss.padded);
  set_if(cells, "fill_failed", loss.fill_failed);
  set_if(cells, "failed_attempted", loss.failed_attempted);
  set_if(cells, "duplicate_ir", loss.duplicate_ir);
  return cells;
}

Cells outcome_cells(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  Cells cells;
  cells["step_ms"] = figure(outcome.step_ms);
  cells["step_ms_p05"] = figure(outcome.step_ms_p05);
  cells["step_ms_p95"] = figure(outcome.step_ms_p95);
  cells["tokens_per_s_per_gpu"] = figure(outcome.tokens_per_s_per_gpu);
  for (std::size_t part = 0; part < study::part_count; ++part) {
    cells[part_columns[part]] = figure(outcome.parts_ms[part]);
  }
  cells["exchange_ms"] = figure(outcome.exchange_ms);
  cells["memory_gib"] = figure(outcome.memory_gib);
  cells["fits_memory"] = outcome.fits_memory ? "true" : "false";
  cells["provenance"] = outcome.provenance;
  if (scenario.has_moe()) {
    add(cells, capacity_cells(scenario.router, outcome.capacity));
    add(cells, loss_cells(outcome.loss));
  }
  return cells;
}

std::vector<std::string> row_of(const Cells& cells, const std::vector<Column>& columns) {
  std::vector<std::string> row;
  row.reserve(columns.size());
  for (const Column& column : columns) {
    const auto cell = cells.find(column.name);
    row.push_back(cell == cells.end() ? "" : cell->second);
  }
  return row;
}

study::Row result_row(const study::SweepPoint& point, const study::Outcome* outcome,
                      const std::string& reason) {
  if (outcome != nullptr) return result_row(*point.scenario, *outcome);
  Cells cells = point.scenario ? option_cells(*point.scenario) : typed_cells(point.values);
  cells["status"] = "refused";
  cells["reason"] = reason;
  std::replace(cells["reason"].begin(), cells["reason"].end(), '\n', ' ');
  return row_of(cells, result_columns());
}

study::Row result_row(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  Cells cells = option_cells(scenario);
  add(cells, outcome_cells(scenario, outcome));
  cells["status"] = "ok";
  return row_of(cells, result_columns());
}

}  // namespace moesim::report
