#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/formats/json_text.hpp"
#include "sim/report/formats.hpp"
#include "sim/report/route_table.hpp"
#include "sim/report/routing_detail.hpp"
#include "sim/report/summary.hpp"
#include "sim/routing/simulation/job_losses.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/route/fit_scores.hpp"
#include "tools/moesim/route/route_losses.hpp"
#include "tools/moesim/scenario/auxiliary_losses.hpp"
#include "tools/moesim/scenario/prefetch.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"

namespace moesim::tool {
namespace {

using routing::ReplicaRouting;
using Replicas = std::vector<std::shared_ptr<const ReplicaRouting>>;

// Means over replicas, and how sure the token loss is.
void fill_losses(const routing::RoutingJob& job, const Replicas& replicas,
                 study::Outcome& outcome) {
  std::vector<routing::TokenLoss> losses;
  std::vector<double> residual;
  for (const auto& replica : replicas) {
    losses.push_back(replica->loss);
    residual.push_back(replica->loss.residual_loss);
  }
  outcome.loss = routing::mean_loss(losses);
  outcome.loss_band = study::band_of_losses(job, residual);
}

Replicas route_all(const routing::RoutingJob& job, int replica_count, int jobs) {
  routing::check(job);
  // Every replica is kept below, so the cache must not drop one before it is read.
  routing::RoutingCache cache(std::size_t{4} << 30);
  prefetch_routing({&job, 1}, replica_count, jobs, cache);
  Replicas replicas;
  for (int replica = 0; replica < replica_count; ++replica) {
    replicas.push_back(cache.get(job, replica));
  }
  return replicas;
}

std::int64_t most_slots(const routing::RoutingJob& job, const Replicas& replicas) {
  std::int64_t most = 0;
  for (const auto& replica : replicas) {
    most = std::max(most, routing::slots_per_expert(job, *replica));
  }
  return most;
}

// A scenario of several: its row, with the losses of training if asked for.
report::CellRow row_of(const scenario::Scenario& scenario, int jobs, bool with_losses) {
  routing::RoutingJob job = scenario.routing_job();
  const Replicas replicas = route_all(job, scenario.replicas, jobs);
  study::Outcome outcome;
  outcome.capacity = most_slots(job, replicas);
  fill_losses(job, replicas, outcome);
  report::CellRow row = study::route_row(scenario, outcome);
  if (with_losses) add_losses(mean_of(losses_of_layers(job, scenario.replicas, jobs)), row);
  return row;
}

scenario::Scenario resolved(const scenario::OptionValues& values,
                            scenario::DocumentCache& documents) {
  scenario::Scenario scenario = scenario::resolve(values, documents, scenario::Use::routing);
  if (scenario.has_moe()) return scenario;
  throw UsageError(
      fmt::format("--router: {} routes nothing: choose top1, top2, ... and a model "
                  "with experts",
                  scenario.router.name()));
}

ExitCode route_several(const CommandLine& line, const std::vector<scenario::OptionValues>& grid) {
  const report::Format format = chosen_format(line, report::Format::table);
  const int jobs = chosen_jobs(line);
  scenario::DocumentCache documents;
  std::vector<scenario::Scenario> scenarios;
  for (const scenario::OptionValues& values : grid) {
    scenarios.push_back(resolved(values, documents));
  }
  std::vector<const scenario::Scenario*> all;
  for (const scenario::Scenario& scenario : scenarios) all.push_back(&scenario);
  note_idle_options(line.asked_scenario(), all, scenario::Asker::routing);
  note_scores(line.scenario(), all);
  note_small_capacity(line.scenario(), all);
  note_trained_routers(all);
  note_equal_weights(all);
  note_second_experts(all);
  const Output out(line.get("out"));
  std::vector<study::Column> columns = loss_columns(line.has("losses"));
  std::vector<report::CellRow> rows;
  std::vector<std::string> bases;
  for (const scenario::Scenario& scenario : scenarios) {
    rows.push_back(row_of(scenario, jobs, line.has("losses")));
    bases.push_back(routing::loss_basis(scenario.scores, scenario.router));
  }
  add_basis(bases, columns, rows);
  leave_repeats_out(rows);
  write_keeping_others(out, render_rows(columns, rows, format));
  return ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  if (line.has("fit-scores")) {
    for (const auto& [flag, text] : line.values) {
      if (flag == "fit-scores" || flag == "out") continue;
      throw UsageError(
          fmt::format("--{}: with --fit-scores the trace says it all: leave it out", flag));
    }
    return fit_scores(line);
  }
  if (line.has("logits")) return route_file(line);
  const std::vector<scenario::OptionValues> grid = study::grid(line.scenario());
  if (grid.size() > 1) return route_several(line, grid);
  const report::Format format = chosen_format(line, report::Format::table);
  const int jobs = chosen_jobs(line);
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = resolved(line.scenario(), documents);
  const scenario::Scenario* const only = &scenario;
  note_idle_options(line.asked_scenario(), {&only, 1}, scenario::Asker::routing);
  note_scores(line.scenario(), {&only, 1});
  note_small_capacity(line.scenario(), {&only, 1});
  note_trained_routers({&only, 1});
  note_equal_weights({&only, 1});
  check_routing_fits(scenario);
  note_costly_routing(scenario);
  const Output out(line.get("out"));
  routing::RoutingJob job = scenario.routing_job();
  job.count_copies = true;  // where this fidelity can
  job.count_copies =
      job.fidelity == routing::Fidelity::tokens || routing::counts_refusal(job).empty();
  const Replicas replicas = route_all(job, scenario.replicas, jobs);

  study::Outcome outcome;
  outcome.capacity = most_slots(job, replicas);
  fill_losses(job, replicas, outcome);
  const std::string basis = routing::loss_basis(scenario.scores, scenario.router);
  if (format == report::Format::csv) {
    std::vector<study::Column> columns = loss_columns(line.has("losses"));
    std::vector<report::CellRow> rows = {study::route_row(scenario, outcome)};
    if (line.has("losses"))
      add_losses(mean_of(losses_of_layers(job, scenario.replicas, jobs)), rows.front());
    add_basis({basis}, columns, rows);
    write_keeping_others(out, render_rows(columns, rows, format));
    return ExitCode::ok;
  }
  const auto row_bytes = static_cast<double>(scenario.model->hidden) * 2;  // bf16
  nlohmann::ordered_json detail = report::routing_detail(job, replicas, row_bytes);
  if (line.has("losses")) detail["auxiliary_losses"] = auxiliary_detail(scenario, jobs);
  if (format == report::Format::table) {
    write_keeping_others(
        out, report::route_summary(scenario, outcome, replicas[0]->layers.size(), detail) +
                 (line.has("losses") ? auxiliary_lines(detail["auxiliary_losses"]) : ""));
  } else {
    nlohmann::ordered_json object = report::to_json(study::names_of(study::route_columns()),
                                                    study::route_row(scenario, outcome));
    if (!basis.empty()) object[report::loss_basis_column] = basis;
    object["detail"] = detail;
    write_keeping_others(out, json_text(object, 2) + "\n");
  }
  return ExitCode::ok;
}

}  // namespace

Command route_command() {
  Command command = {
      "route",
      "run a router alone: every loss, of drawn or recorded routing",
      "[options]",
      "moesim route --router top2+fr+ir --capacity-factor 1 --replicas 4",
      {{"logits", "FILE", "none",
        "route these instead: .npy [P, S, E] or [S, E] of float16, bfloat16, float32 or float64; "
        "every loss as table, CSV or JSON; with --out FILE.npy the routes"},
       losses_flag(),
       fit_scores_flag(),
       format_flag(),
       out_flag(),
       jobs_flag(),
       config_flag(),
       from_flag()},
      true,
      0,
      run,
      "Options also take lists a,b,c and ranges lo:hi:step: a line for each scenario.\n"};
  command.takes_profile_of_cluster = false;
  return command;
}

}  // namespace moesim::tool
