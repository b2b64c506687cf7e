#include "tools/moesim/route/route_losses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "sim/base/file.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/base/text.hpp"
#include "sim/report/route_table.hpp"
#include "sim/routing/groups/logits_file.hpp"
#include "sim/scenario/router_options.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/route/doubtful_logits.hpp"
#include "tools/moesim/route/logits_detail.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"

namespace moesim::tool {
namespace {

// What a file of logits says, or what drawing them would take: no cells for these. The cluster
// has one, whose nodes `+ir@node` and scomoe go by.
constexpr const char* not_of_logits[] = {"profile", "model", "routing", "fidelity", "replicas"};

// The sizes are those of the file: typed ones have to agree with it.
void check_sizes(const CommandLine& line, const routing::GroupOfFile& group,
                 const std::string& shape) {
  const std::vector<std::pair<const char*, std::int64_t>> sizes{{"expert-parallel", group.ranks},
                                                                {"tokens-per-gpu", group.tokens},
                                                                {"experts", group.experts}};
  constexpr std::int64_t most = std::int64_t{1} << 31;
  for (const auto& [flag, size] : sizes) {
    if (!line.has(flag) || parse_whole(fmt::format("--{}", flag), line.get(flag), 1, most) == size)
      continue;
    throw UsageError(
        fmt::format("--{}: {} is not what {} holds: its shape {} says {}: leave the "
                    "option out",
                    flag, line.get(flag), group.name, shape, size));
  }
}

// A scenario with the options of the router alone: how many experts and tokens there are is for the
// file to say.
scenario::Scenario scenario_of(scenario::OptionValues values, const routing::GroupOfFile& group,
                               scenario::DocumentCache& documents) {
  for (const auto& [option, text] : values) scenario::check_value(option, text, documents);
  for (const char* of_the_file : {"routing", "fidelity"}) values.erase(of_the_file);
  values["experts"] = std::to_string(group.experts);
  values["expert-parallel"] = values["gpus"] = std::to_string(group.ranks);
  // No tokens are none to route, but no tokens per GPU are no scenario.
  values["tokens-per-gpu"] = std::to_string(std::max<std::int64_t>(1, group.tokens));
  scenario::Scenario scenario = scenario::fill_in(values, documents, scenario::Use::routing);
  if (!scenario.router.is_dense()) return scenario;
  throw UsageError("--router: dense routes nothing: choose top1, top2, ...");
}

void note_no_losses(const routing::RouterConfig& router) {
  note(
      fmt::format("--losses: router {} does not give each token k experts by its scores: it has "
                  "no balance loss",
                  router.name()));
}

// Whether each token's choices are k experts, before drops.
bool has_training_losses(const routing::RouterConfig& router) {
  return router.scores_experts() && router.chooses_top_k();
}

report::CellRow row_of(const scenario::Scenario& scenario, const routing::GroupOfFile& file,
                       const routing::RoutedGroup& group) {
  study::Outcome outcome;
  outcome.loss = group.loss;
  outcome.capacity = scenario.router.pads_to_busiest() ? group.exchanged_capacity
                     : group.capacity.empty()
                         ? 0
                         : *std::max_element(group.capacity.begin(), group.capacity.end());
  report::CellRow row = study::route_row(scenario, outcome);
  const std::vector<study::Column>& columns = study::route_columns();
  for (std::size_t column = 0; column < columns.size(); ++column) {
    for (const char* name : not_of_logits) {
      if (columns[column].name == name) row[column] = Cell();
    }
  }
  if (has_training_losses(scenario.router)) {
    add_losses(routing::auxiliary_losses(scenario.router, file, group), row);
  } else {
    row.resize(loss_columns(true).size());
  }
  return row;
}

void note_losses(const CommandLine& line, const scenario::Scenario& scenario,
                 const routing::GroupOfFile& file, const routing::RoutedGroup& group) {
  if (!line.has("losses")) return;
  if (!has_training_losses(scenario.router)) return note_no_losses(scenario.router);
  const routing::AuxiliaryLosses losses = routing::auxiliary_losses(scenario.router, file, group);
  note(fmt::format(
      "balance loss {:.6g} by first choices, {:.6g} by all {}, {:.6g} of each rank; z-loss {:.6g}",
      losses.balance, losses.balance_all, group.top_k, losses.balance_sequence, losses.z));
}

routing::RoutedGroup route(const scenario::Scenario& scenario, const routing::GroupOfFile& file) {
  routing::RouterContext context;
  context.seed = scenario.seed;
  context.place.gpus_per_domain = scenario.cluster->gpus_per_domain;
  return routing::route_logits(scenario.router, file, context, scenario.order);
}

// Logits say no k, and where nothing else does it is that of a model that nobody named.
void note_default_k(const CommandLine& line, const scenario::Scenario& first) {
  if (line.has("model") || !scenario::takes_models_k(line.scenario())) return;
  note(fmt::format(
      "note: --logits do not say how many experts a token goes to: k = {} is that of {}, the "
      "default --model: give --top-k, or a router whose name has it",
      first.model->moe->top_k, first.model_name));
}

// As `route` has a scenario without --logits: an object with its detail. Logits have no hidden size
// of their own: bytes are said of a model that was named.
std::string one_result(const scenario::Scenario& scenario, const routing::GroupOfFile& file,
                       const routing::RoutedGroup& group, const report::CellRow& row,
                       bool has_model) {
  const double row_bytes = has_model ? static_cast<double>(scenario.model->hidden) * 2 : 0;  // bf16
  nlohmann::ordered_json object = report::to_json(study::names_of(loss_columns(true)), row);
  object["detail"] = logits_detail(scenario, file, group, row_bytes);
  return json_text(object, 2) + "\n";
}

void refuse_other_files(const std::string& out) {
  for (const char* ending : {".parquet", ".npz", ".pt", ".safetensors", ".xlsx", ".txt", ".html"}) {
    if (!out.ends_with(ending)) continue;
    throw UsageError(fmt::format(
        "--out {}: {} files are not written: name a .npy file for the routes, a .csv or .json for "
        "the losses",
        out, ending));
  }
}

bool wants_routes(const CommandLine& line) {
  const std::string out = line.get("out");
  return !out.empty() && !line.has("format") && !out.ends_with(".csv") && !out.ends_with(".json");
}

}  // namespace

std::vector<study::Column> loss_columns(bool with_training_losses) {
  std::vector<study::Column> columns = study::route_columns();
  if (!with_training_losses) return columns;
  for (const char* name : {"balance_loss", "balance_loss_all_choices", "z_loss"}) {
    columns.push_back({name, study::ColumnType::number, study::ColumnRole::loss});
  }
  return columns;
}

void add_losses(const routing::AuxiliaryLosses& losses, report::CellRow& row) {
  for (const double loss : {losses.balance, losses.balance_all, losses.z}) {
    row.push_back(figure_cell(loss));
  }
}

void add_basis(const std::vector<std::string>& bases, std::vector<study::Column>& columns,
               std::vector<report::CellRow>& rows) {
  const auto is_named = [](const std::string& basis) { return !basis.empty(); };
  if (std::none_of(bases.begin(), bases.end(), is_named)) return;
  columns.push_back({report::loss_basis_column, study::ColumnType::text,
                     study::ColumnRole::provenance, "", true});
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row].push_back(is_named(bases[row]) ? Cell(bases[row]) : Cell());
  }
}

void leave_repeats_out(std::vector<report::CellRow>& rows) {
  std::set<std::string> seen;
  const std::size_t all = rows.size();
  std::erase_if(rows, [&](const report::CellRow& row) {
    return !seen.insert(report::to_csv({}, {row})).second;
  });
  if (rows.size() == all) return;
  note(fmt::format(
      "{} of {} combinations left out: they differ from another only in what their router has no "
      "use for",
      all - rows.size(), all));
}

std::string render_rows(const std::vector<study::Column>& columns,
                        const std::vector<report::CellRow>& rows, report::Format format) {
  if (format == report::Format::table) return report::route_table(columns, rows);
  const std::vector<std::string> names = study::names_of(columns);
  return format == report::Format::csv ? report::to_csv(names, rows)
                                       : report::to_json_text(names, rows);
}

ExitCode route_file(const CommandLine& line) {
  if (line.get("out").ends_with(".npy") && line.has("format")) {
    throw UsageError(fmt::format(
        "--format {}: --out {} takes the routes, an array: leave --format out, or name a .{} file "
        "for the losses",
        line.get("format"), line.get("out"), line.get("format") == "csv" ? "csv" : "json"));
  }
  if (!line.has("format")) refuse_other_files(line.get("out"));
  const NpyArray array = NpyArray::load(line.get("logits"));
  const routing::GroupOfFile file = routing::group_of(array);
  check_sizes(line, file, array.shape_text());
  const std::vector<scenario::OptionValues> grid = study::grid(line.scenario());
  const bool with_routes = wants_routes(line);
  if (with_routes && grid.size() > 1) {
    throw UsageError(fmt::format(
        "--out {}: the routes of one router at one capacity factor, not of {}: give a .csv or "
        ".json for the losses of all",
        line.get("out"), grid.size()));
  }
  scenario::DocumentCache documents;
  std::vector<scenario::Scenario> scenarios;
  for (const auto& values : grid) scenarios.push_back(scenario_of(values, file, documents));
  std::vector<const scenario::Scenario*> all;
  for (const scenario::Scenario& scenario : scenarios) all.push_back(&scenario);
  note_idle_options(line.asked_scenario(), all, scenario::Asker::logits);
  note_default_k(line, *all.front());
  note_small_capacity(line.scenario(), all);
  note_trained_routers(all);
  note_equal_weights(all);
  note_second_experts(all);
  warn_of_logits(file.name, file.logits, file.tokens, file.experts);
  if (with_routes) {
    const scenario::Scenario& scenario = scenarios.front();
    check_writable(line.get("out"));
    const routing::RoutedGroup group = route(scenario, file);
    routing::write_routes(line.get("out"), group);
    note_losses(line, scenario, file, group);
    note(fmt::format("routes of {} tokens by {}, {:.2f} % of the primary ones failed: {}",
                     group.tokens, scenario.router.name(), group.loss.failed * 100,
                     line.get("out")));
    return ExitCode::ok;
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  std::vector<report::CellRow> rows;
  std::optional<routing::RoutedGroup> first;
  for (const scenario::Scenario& scenario : scenarios) {
    routing::RoutedGroup group = route(scenario, file);
    rows.push_back(row_of(scenario, file, group));
    if (line.has("losses") && !has_training_losses(scenario.router))
      note_no_losses(scenario.router);
    if (!first) first = std::move(group);
  }
  leave_repeats_out(rows);
  if (rows.size() == 1 && format == report::Format::json) {
    write_keeping_others(
        out, one_result(scenarios.front(), file, *first, rows.front(), line.has("model")));
    return ExitCode::ok;
  }
  write_keeping_others(out, render_rows(loss_columns(true), rows, format));
  return ExitCode::ok;
}

}  // namespace moesim::tool
