#include "sim/study/sweep/result_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "sim/base/error.hpp"
#include "sim/base/flag_errors.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/column_meanings.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "sim/study/sweep/efficiency.hpp"

namespace moesim::study {
namespace {

using routing::TokenLoss;
using scenario::Option;
using scenario::Scenario;

// One column of a row: an option's, or one that an outcome fills.
struct RowColumn {
  Column column;
  const Option* option = nullptr;
  std::function<Cell(const Scenario&, const Outcome&)> cell = nullptr;
};

Cell optional_cell(const std::optional<double>& value) {
  return value ? figure_cell(*value) : Cell();
}

Cell capacity_cell(const Scenario& scenario, const Outcome& outcome) {
  if (!scenario.has_moe()) return {};
  const routing::RouterConfig& router = scenario.router;
  return router.has_capacity() || router.pads_exchange() ? Cell(outcome.capacity) : Cell();
}

RowColumn figure(const char* name, const char* unit, double Outcome::*member) {
  return {
      {name, ColumnType::number, ColumnRole::figure, unit},
      nullptr,
      [member](const Scenario&, const Outcome& outcome) { return figure_cell(outcome.*member); }};
}

RowColumn band_figure(const char* name, double uncertainty::SimulatedBand::*member) {
  return {{name, ColumnType::number, ColumnRole::figure, "ms"},
          nullptr,
          [member](const Scenario&, const Outcome& outcome) {
            return figure_cell(outcome.band.*member);
          }};
}

void add_efficiency(std::vector<RowColumn>& columns) {
  const auto add = [&](const char* name, const char* unit, double Efficiency::*member) {
    columns.push_back({{name, ColumnType::number, ColumnRole::figure, unit},
                       nullptr,
                       [member](const Scenario& scenario, const Outcome& outcome) {
                         return figure_cell(efficiency(scenario, outcome).*member);
                       }});
  };
  add("tflops_per_gpu", "TFLOP/s", &Efficiency::tflops_per_gpu);
  add("mfu", "share", &Efficiency::mfu);
  add("tokens_per_day", "tokens", &Efficiency::tokens_per_day);
  add("gpu_hours_per_1e12_tokens", "hours", &Efficiency::gpu_hours_per_1e12_tokens);
}

// Of a dense router blank.
void add_kept_mfu(std::vector<RowColumn>& columns) {
  columns.push_back({{"mfu_kept", ColumnType::number, ColumnRole::figure, "share", false,
                      meaning_of_column("mfu_kept")},
                     nullptr,
                     [](const Scenario& scenario, const Outcome& outcome) {
                       return optional_cell(efficiency(scenario, outcome).mfu_kept);
                     }});
}

// Of a dense router blank.
void add_counted_loss(std::vector<RowColumn>& columns) {
  columns.push_back({{counted_loss_column, ColumnType::number, ColumnRole::loss, "share", true,
                      meaning_of_column(counted_loss_column)},
                     nullptr,
                     [](const Scenario& scenario, const Outcome& outcome) {
                       if (!scenario.has_moe()) return Cell();
                       return figure_cell(
                           counted_loss(outcome.loss, scenario.router, *scenario.model));
                     }});
}

void add_memory_parts(std::vector<RowColumn>& columns) {
  const auto add = [&](const char* name, double (*part)(const MemoryParts& parts)) {
    columns.push_back({{name, ColumnType::number, ColumnRole::figure, "GiB"},
                       nullptr,
                       [part](const Scenario&, const Outcome& outcome) {
                         return figure_cell(part(memory_parts(outcome)));
                       }});
  };
  add("parameters_gib", [](const MemoryParts& parts) { return parts.parameters; });
  add("gradients_gib", [](const MemoryParts& parts) { return parts.gradients; });
  add("optimizer_gib", [](const MemoryParts& parts) { return parts.optimizer; });
  add("activations_gib",
      [](const MemoryParts& parts) { return parts.activations + parts.kv_cache; });
  add("buffers_gib", [](const MemoryParts& parts) { return parts.buffers; });
}

void add_losses(std::vector<RowColumn>& columns) {
  for (const LossFigure& figure : loss_figures()) {
    columns.push_back(
        {{figure.name, ColumnType::number, ColumnRole::loss, "share", true, figure.meaning},
         nullptr,
         [&figure](const Scenario& scenario, const Outcome& outcome) {
           return scenario.has_moe() ? figure.cell(outcome.loss) : Cell();
         }});
  }
}

// How sure residual_loss is.
void add_loss_band(std::vector<RowColumn>& columns) {
  const auto add = [&](const char* name, const char* meaning,
                       double uncertainty::LossBand::*member) {
    columns.push_back({{name, ColumnType::number, ColumnRole::figure, "share", true, meaning},
                       nullptr,
                       [member](const Scenario& scenario, const Outcome& outcome) {
                         return scenario.has_moe() && outcome.loss_band
                                    ? figure_cell((*outcome.loss_band).*member)
                                    : Cell();
                       }});
  };
  add("residual_loss_p05",
      "with residual_loss_p95: holds the residual_loss of one further step of the same routing "
      "with "
      "90 % chance; from 19 replicas on by their order, of fewer by Student's t, of one blank",
      &uncertainty::LossBand::p05);
  add("residual_loss_p95", "see residual_loss_p05", &uncertainty::LossBand::p95);
  add("residual_loss_error",
      "standard error of residual_loss, the mean over replicas; of one blank",
      &uncertainty::LossBand::error);
}

void add_parts(std::vector<RowColumn>& columns) {
  for (std::size_t part = 0; part < part_count; ++part) {
    columns.push_back(
        {{step::part_names()[part] + "_ms", ColumnType::number, ColumnRole::part, "ms"},
         nullptr,
         [part](const Scenario&, const Outcome& outcome) {
           return figure_cell(outcome.parts_ms[part]);
         }});
  }
}

void add_band(std::vector<RowColumn>& columns) {
  columns.push_back(band_figure("step_ms_p50", &uncertainty::SimulatedBand::p50_ms));
  columns.push_back(band_figure("step_ms_same_p05", &uncertainty::SimulatedBand::same_p05_ms));
  columns.push_back(band_figure("step_ms_same_p95", &uncertainty::SimulatedBand::same_p95_ms));
  const auto add = [&](const char* name, std::string uncertainty::Term::*member) {
    columns.push_back({{name, ColumnType::text, ColumnRole::provenance},
                       nullptr,
                       [member](const Scenario&, const Outcome& outcome) {
                         const auto& terms = outcome.band.terms;
                         return terms.empty() ? Cell() : Cell(terms.front().*member);
                       }});
  };
  add("widest_term", &uncertainty::Term::name);
  add("narrower_with", &uncertainty::Term::remedy);
}

void add_baseline(std::vector<RowColumn>& columns) {
  const auto add = [&](const char* name, double SpeedRatio::*member) {
    columns.push_back({{name, ColumnType::number, ColumnRole::figure, "times"},
                       nullptr,
                       [member](const Scenario&, const Outcome& outcome) {
                         return outcome.over_baseline
                                    ? figure_cell((*outcome.over_baseline).*member)
                                    : Cell();
                       }});
  };
  add("speed_over_baseline", &SpeedRatio::value);
  add("speed_over_baseline_p05", &SpeedRatio::p05);
  add("speed_over_baseline_p95", &SpeedRatio::p95);
  columns.push_back({{"within_noise", ColumnType::boolean, ColumnRole::figure},
                     nullptr,
                     [](const Scenario&, const Outcome& outcome) {
                       return outcome.over_baseline ? Cell(outcome.over_baseline->within_noise())
                                                    : Cell();
                     }});
}

// Every figure of an outcome that has a column.
std::vector<RowColumn> outcome_columns() {
  std::vector<RowColumn> columns;
  columns.push_back({{"capacity", ColumnType::number, ColumnRole::figure, "slots", true},
                     nullptr,
                     capacity_cell});
  columns.push_back(figure("step_ms", "ms", &Outcome::step_ms));
  columns.push_back(band_figure("step_ms_p05", &uncertainty::SimulatedBand::p05_ms));
  columns.push_back(band_figure("step_ms_p95", &uncertainty::SimulatedBand::p95_ms));
  columns.push_back(figure("tokens_per_s_per_gpu", "tokens/s", &Outcome::tokens_per_s_per_gpu));
  add_losses(columns);
  add_parts(columns);
  columns.push_back(figure("exchange_ms", "ms", &Outcome::exchange_ms));
  columns.push_back(figure("memory_gib", "GiB", &Outcome::memory_gib));
  columns.push_back(
      {{"fits_memory", ColumnType::boolean, ColumnRole::figure},
       nullptr,
       [](const Scenario&, const Outcome& outcome) { return Cell(outcome.fits_memory); }});
  columns.push_back(
      {{"provenance", ColumnType::text, ColumnRole::provenance},
       nullptr,
       [](const Scenario&, const Outcome& outcome) { return Cell(outcome.provenance); }});
  add_efficiency(columns);
  add_memory_parts(columns);
  add_band(columns);
  add_baseline(columns);
  add_loss_band(columns);
  return columns;
}

// The order that files have had from the first; columns that are not named here follow the last of
// these in the order of their declaration.
constexpr const char* first_columns[] = {"status",
                                         "reason",
                                         "model",
                                         "profile",
                                         "cluster",
                                         "router",
                                         "priority",
                                         "weights",
                                         "fill_order",
                                         "ir_compute",
                                         "dispatch",
                                         "mode",
                                         "routing",
                                         "gpus",
                                         "expert_parallel",
                                         "experts",
                                         "top_k",
                                         "capacity_factor",
                                         "capacity_convention",
                                         "capacity_scope",
                                         "capacity",
                                         "sequence_length",
                                         "micro_batch",
                                         "tokens_per_gpu",
                                         "checkpointing",
                                         "zero",
                                         "network",
                                         "replicas",
                                         "seed",
                                         "step_ms",
                                         "step_ms_p05",
                                         "step_ms_p95",
                                         "tokens_per_s_per_gpu",
                                         "failed",
                                         "partial",
                                         "lost_mass",
                                         "fill_failed",
                                         "failed_attempted",
                                         "unrouted",
                                         "residual_loss",
                                         "padded",
                                         "duplicate_ir",
                                         "attention_ms",
                                         "dense_ffn_ms",
                                         "router_ms",
                                         "dispatch_combine_ms",
                                         "expert_ms",
                                         "rectify_ms",
                                         "exposed_exchange_ms",
                                         "gradient_ms",
                                         "optimizer_ms",
                                         "other_ms",
                                         "exchange_ms",
                                         "memory_gib",
                                         "fits_memory",
                                         "provenance",
                                         "min_capacity",
                                         "ir_duplicates",
                                         "global_batch",
                                         "overlap",
                                         "slow_gpu",
                                         "slow_link",
                                         "jitter",
                                         "overlap_slowdown",
                                         "router_dialect",
                                         "padding",
                                         "fidelity",
                                         "dedup",
                                         "dispatcher",
                                         "expert_placement"};

std::vector<RowColumn> declare_columns() {
  std::vector<RowColumn> columns;
  columns.push_back({{"status", ColumnType::text, ColumnRole::status, "", true}});
  columns.push_back({{"reason", ColumnType::text, ColumnRole::status, "", true}});
  for (RowColumn& column : outcome_columns()) columns.push_back(std::move(column));
  for (RowColumn& column : columns) {
    std::string& meaning = column.column.meaning;
    if (meaning.empty()) meaning = meaning_of_column(column.column.name);
  }
  for (const Option& option : scenario::scenario_options()) {
    const ColumnType type = option.is_number() ? ColumnType::number : ColumnType::text;
    columns.push_back({{option.column, type, ColumnRole::option, "", option.in_route}, &option});
  }
  add_kept_mfu(columns);
  add_counted_loss(columns);
  const auto place = [](const RowColumn& column) {
    return std::find(std::begin(first_columns), std::end(first_columns), column.column.name);
  };
  std::stable_sort(columns.begin(), columns.end(),
                   [&](const RowColumn& a, const RowColumn& b) { return place(a) < place(b); });
  return columns;
}

const std::vector<RowColumn>& row_columns() {
  static const std::vector<RowColumn> columns = declare_columns();
  return columns;
}

Cell status_cell(const Column& column, const std::string& refusal) {
  if (column.name == "status") return std::string(refusal.empty() ? "ok" : "refused");
  return refusal.empty() ? Cell() : Cell(refusal);
}

Row row_of(const Scenario& scenario, const Outcome& outcome, bool of_route) {
  Row row;
  for (const RowColumn& column : row_columns()) {
    if (of_route && !column.column.in_route) continue;
    row.push_back(column.option != nullptr ? column.option->cell(scenario)
                  : column.cell != nullptr ? column.cell(scenario, outcome)
                                           : status_cell(column.column, ""));
  }
  return row;
}

}  // namespace

const std::vector<LossFigure>& loss_figures() {
  static const std::vector<LossFigure> figures{
      {"failed", "routes not kept, before rectification",
       [](const TokenLoss& loss) { return figure_cell(loss.failed); }},
      {"partial", "tokens with fewer than k routes kept",
       [](const TokenLoss& loss) { return figure_cell(loss.partial); }},
      {"lost_mass",
       "of the top-k probability of all tokens together, not kept, before rectification",
       [](const TokenLoss& loss) { return figure_cell(loss.lost_mass); }},
      {"fill_failed", "fill-in nominations that found no slot",
       [](const TokenLoss& loss) { return optional_cell(loss.fill_failed); }},
      {"failed_attempted", "failed of all attempted routes, fill-in included",
       [](const TokenLoss& loss) { return optional_cell(loss.failed_attempted); }},
      {"unrouted", "tokens without any expert, in the end",
       [](const TokenLoss& loss) { return figure_cell(loss.unrouted); }},
      {"residual_loss",
       "token loss: share of a token's top-k probability that nobody processes, mean over tokens",
       [](const TokenLoss& loss) { return figure_cell(loss.residual_loss); }},
      {"padded", "expert slots that stay empty",
       [](const TokenLoss& loss) { return figure_cell(loss.padded); }},
      {"duplicate_ir", "IR rows whose expert had the token already, per token",
       [](const TokenLoss& loss) { return optional_cell(loss.duplicate_ir); }},
  };
  return figures;
}

const std::vector<Column>& result_columns() {
  static const std::vector<Column> columns = [] {
    std::vector<Column> all;
    for (const RowColumn& column : row_columns()) all.push_back(column.column);
    return all;
  }();
  return columns;
}

const std::vector<Column>& route_columns() {
  static const std::vector<Column> columns = [] {
    std::vector<Column> kept;
    for (const Column& column : result_columns()) {
      if (column.in_route) kept.push_back(column);
    }
    return kept;
  }();
  return columns;
}

std::vector<std::string> names_of(const std::vector<Column>& columns) {
  std::vector<std::string> names;
  for (const Column& column : columns) names.push_back(column.name);
  return names;
}

std::size_t column_index(const std::string& name) {
  const std::vector<Column>& columns = result_columns();
  const auto found = std::find_if(columns.begin(), columns.end(),
                                  [&](const Column& column) { return column.name == name; });
  if (found == columns.end()) throw Error(fmt::format("there is no result column {}", name));
  return static_cast<std::size_t>(found - columns.begin());
}

Row result_row(const Scenario& scenario, const Outcome& outcome) {
  return row_of(scenario, outcome, false);
}

Row route_row(const Scenario& scenario, const Outcome& outcome) {
  return row_of(scenario, outcome, true);
}

Row refused_row(const Scenario* scenario, const scenario::OptionValues& typed,
                const std::string& reason) {
  std::string line = reason;
  std::replace(line.begin(), line.end(), '\n', ' ');
  Row row;
  for (const RowColumn& column : row_columns()) {
    Cell cell;
    if (column.column.role == ColumnRole::status) {
      cell = status_cell(column.column, line);
    } else if (column.option != nullptr) {
      if (scenario != nullptr) cell = column.option->cell(*scenario);
      // What does not apply has a cell where the reason names it: --from has to find it.
      const bool is_told = scenario == nullptr || names_flag(line, column.option->name);
      const auto value = typed.find(column.option->name);
      if (cell == Cell() && is_told && value != typed.end()) {
        cell = column.option->cell_of(value->second);
      }
    }
    row.push_back(std::move(cell));
  }
  return row;
}

}  // namespace moesim::study
