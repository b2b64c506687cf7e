#include "tools/moesim/calibrate/calibrate_predictions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "sim/base/contains.hpp"
#include "sim/base/parallel.hpp"
#include "sim/base/shipped.hpp"
#include "sim/job/job_options.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/efficiency.hpp"
#include "sim/study/sweep/result_row.hpp"
#include "sim/training/step/job_rules.hpp"
#include "sim/training/step/layer_time.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/rows/named_cells.hpp"
#include "tools/moesim/scenario/prefetch.hpp"
#include "tools/moesim/train/train_report.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using training::LayerExtent;
using uncertainty::RowKind;

constexpr const char* moe_layer_op = "moe-layer";
constexpr const char* layer_op = "layer";
constexpr const char* pass_column = "pass";

constexpr EnumNames<bool, 2> pass_names{{{false, "forward"}, {true, "backward"}}};

std::vector<std::string> exchange_operations() {
  std::vector<std::string> names{"dispatch", "combine"};
  for (const auto& kind : profile::collective_names) names.emplace_back(kind.name);
  return names;
}

std::string default_profile() {
  for (const Flag& flag : train_flags()) {
    if (flag.name == "profile") return flag.default_text;
  }
  return "";
}

// Rows are fitted to the times of hardware: software on it would count twice. Throws UsageError for
// a profile that is calibrated already.
profile::Profile hardware(const std::string& name) {
  profile::Profile profile = profile::Profile::load(name, profile::Profile::Calibrated::taken);
  std::string base;
  if (profile.software()) {
    base = profile.software()->profile;
  } else if (!profile.calibration().empty()) {
    base = uncertainty::StepSoftware::load(profile.calibration()).profile;
  }
  if (base.empty()) return profile;
  throw UsageError(fmt::format(
      "--profile {0}: it is software on {1} already, which would count twice: give its hardware, "
      "--profile {1}",
      name, base));
}

RowKind row_kind_of(const std::string& op, const std::vector<std::string>& known) {
  if (op == step_op) return RowKind::step;
  if (op == moe_layer_op || op == layer_op) return RowKind::layer;
  if (contains(exchange_operations(), op)) return RowKind::exchange;
  throw UsageError(fmt::format(
      "unknown operation '{}'{}; choose from {}; kernels are measured by moesim profile", op,
      suggestion(op, known), fmt::join(known, ", ")));
}

}  // namespace

std::string TrainRows::elsewhere(const std::string& column) const {
  const auto& options = scenario::scenario_options();
  const bool has = std::any_of(options.begin(), options.end(), [&](const scenario::Option& option) {
    return option.column == column;
  });
  return has ? "; simulate has it: are these its rows? Then --command simulate" : "";
}

std::string SimulateRows::elsewhere(const std::string& column) const {
  const auto& options = job::job_options();
  const bool has = std::any_of(options.begin(), options.end(), [&](const job::JobOption& option) {
    return option.column() == column;
  });
  return has ? "; train has it: are these its rows? Then leave --command out" : "";
}

std::vector<std::string> TrainRows::operations() const {
  std::vector<std::string> names{step_op, moe_layer_op, layer_op};
  for (const std::string& name : exchange_operations()) names.push_back(name);
  return names;
}

std::set<std::string> TrainRows::columns_of(const std::string& op) const {
  std::set<std::string> names;
  const RowKind kind = row_kind_of(op, operations());
  if (kind == RowKind::exchange) {
    for (const std::string& name : parameters_of(profile::find_operation(op))) names.insert(name);
    return names;
  }
  for (const Flag& flag : train_flags()) names.insert(flag.name);
  if (kind == RowKind::layer) names.insert(pass_column);
  return names;
}

const std::string& TrainRows::machine_of(const std::string& profile) {
  std::string& name = machines_[profile];
  if (name.empty()) name = hardware(profile).device().name;
  return name;
}

RowPrediction TrainRows::exchange(const std::string& op, const CommandLine& asked) {
  RowPrediction found;
  found.profile = asked.get("profile", default_profile());
  found.machine = machine_of(found.profile);  // refuses one that is calibrated already
  QueryParams params;
  for (const std::string& name : columns_of(op)) {
    if (name == "profile" || !asked.has(name)) continue;
    check_parameter(name, asked.get(name), "column " + name);
    params[name] = asked.get(name);
  }
  if (!is_exchange(op, params)) {
    throw UsageError(fmt::format("{}: without a dispatcher it is a kernel: say which one", op));
  }
  const auto source = sources_.try_emplace(found.profile, found.profile).first;
  const QueryAnswer answer = source->second.ask(op, std::move(params));
  const double ms = answer.estimate.time_us / 1e3;
  (answer.crosses ? found.classes.crossing : found.classes.exchange) = ms;
  found.classes.kind = RowKind::exchange;
  found.size = answer.size;
  return found;
}

RowPrediction TrainRows::predict(const std::string& op, const CommandLine& asked) {
  const RowKind kind = row_kind_of(op, operations());
  if (kind == RowKind::exchange) return exchange(op, asked);
  RowPrediction found;
  found.profile = asked.get("profile", default_profile());
  found.machine = machine_of(found.profile);  // refuses one that is calibrated already
  found.job = requested_job(asked, false, &documents_);
  const uncertainty::CrossingParts crossing = training::crossing_parts(*found.job);
  if (kind == RowKind::step) {
    training::check_decoder(*found.job);
    training::check_job(*found.job);
    // Routing does not hang on the host: it is drawn once.
    const auto loads =
        found.job->routing ? std::make_shared<const training::DrawnLoads>(*found.job) : nullptr;
    found.step = training::training_step(*found.job, loads);
    found.classes = uncertainty::classes_of(*found.step, crossing);
    found.with_host = [job = *found.job, loads, crossing](double host_factor) {
      training::TrainingJob moved = job;
      moved.host.factor *= host_factor;
      return uncertainty::classes_of(training::training_step(moved, loads, false), crossing);
    };
    found.memory_gib = found.step->peak_memory().gib();
    found.room_gib = found.job->profile->device().hbm_bytes.gib();
    const bool drops = found.job->routing && found.job->routing->router.drops;
    if (!drops) found.mfu = found.step->mfu;
    return found;
  }
  // No default: a time of both passes, taken for a forward one, would pass as slow software.
  if (!asked.has(pass_column)) {
    throw UsageError(
        fmt::format("column pass: a row of {} is of one pass: say which, forward or backward", op));
  }
  const bool backward = value_in(pass_names, asked.get(pass_column), pass_column);
  const LayerExtent extent = op == layer_op ? LayerExtent::whole : LayerExtent::moe;
  const auto layer = [job = *found.job, extent, backward, crossing](double host_factor) {
    training::TrainingJob moved = job;
    moved.host.factor *= host_factor;
    uncertainty::StepClasses classes =
        uncertainty::classes_of(training::layer_time(moved, extent, backward), crossing);
    classes.kind = RowKind::layer;
    return classes;
  };
  found.classes = layer(1);
  if (extent == LayerExtent::whole) found.with_host = layer;
  return found;
}

std::vector<std::string> TrainRows::result_columns(const RowPrediction& row) const {
  if (!row.step) return {};
  TrainBand band;
  band.subject = study::subject_of(*row.job, "");
  band.band = study::published_errors().band(band.subject);
  band.terms.emplace_back();
  std::vector<std::string> results = training_columns(*row.job, *row.step);
  results.insert(results.end(), {host_gain_column, unmeasured_each_column});
  // Those of --train-tokens, --gpu-hour-price and --baseline too, whichever the file has.
  band.baseline.emplace().band = band.band;
  for (const auto& tokens : {std::optional(1e12), std::optional<double>()}) {
    band.cost = {tokens, 1.0};
    for (const auto& [name, cell] : band_cells(band, *row.step)) results.push_back(name);
  }
  return results;
}

std::set<std::string> SimulateRows::columns_of(const std::string& op) const {
  if (op != step_op) {
    throw UsageError(fmt::format(
        "'{}': rows of simulate are steps and forward passes: leave op empty; layers and exchanges "
        "calibrate train, exchanges also a profile or cluster by moesim import",
        op));
  }
  std::set<std::string> names;
  for (const scenario::Option& option : scenario::scenario_options()) names.insert(option.name);
  return names;
}

void SimulateRows::prepare(const std::vector<CommandLine>& rows) {
  std::map<int, std::vector<routing::RoutingJob>> jobs;  // by replicas
  for (const CommandLine& row : rows) {
    try {
      const scenario::Scenario scenario = scenario::resolve(row.scenario(), documents_);
      if (scenario.has_moe()) jobs[scenario.replicas].push_back(scenario.routing_job());
    } catch (const Error&) {
      // predict() says where.
    }
  }
  for (const auto& [replicas, same] : jobs) {
    prefetch_routing(same, replicas, core_count(), cache_);
  }
}

RowPrediction SimulateRows::predict(const std::string&, const CommandLine& asked) {
  RowPrediction found;
  const std::string profile = asked.get("profile");
  if (!profile.empty() && hardware_.insert(profile).second) hardware(profile);
  found.scenario = scenario::resolve(asked.scenario(), documents_);
  found.machine = found.scenario->profile->device().name;
  found.profile = found.scenario->profile_name;
  const study::Outcome outcome = study::evaluate(*found.scenario, cache_);
  found.classes.compute = outcome.step_ms;
  found.memory_gib = outcome.memory_gib;
  found.room_gib = found.scenario->profile->device().hbm_bytes.gib();
  const bool drops = found.scenario->has_moe() && found.scenario->router.drops;
  if (!drops) found.mfu = study::efficiency(*found.scenario, outcome).mfu;
  return found;
}

std::vector<std::string> SimulateRows::result_columns(const RowPrediction&) const {
  return study::names_of(study::result_columns());
}

}  // namespace moesim::tool
