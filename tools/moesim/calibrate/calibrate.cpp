#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"
#include "sim/study/calibration/scenario_fit.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/calibrate/calibrate_hosts.hpp"
#include "tools/moesim/calibrate/calibrate_report.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using uncertainty::MeasuredStep;
using uncertainty::StepFit;
using uncertainty::StepSoftware;
using uncertainty::Unknown;

constexpr std::size_t most_files = 64;

// Whose predictions the rows are beside.
constexpr EnumNames<bool, 2> command_names{{{false, "train"}, {true, "simulate"}}};

// --fit, or what the rows can carry. Throws UsageError for more unknowns than rows, and for one
// that no row says anything about.
std::vector<Unknown> requested_unknowns(const CommandLine& line,
                                        const std::vector<CalibrationRow>& rows,
                                        const std::vector<MeasuredStep>& steps,
                                        const uncertainty::SoftwarePrior& prior) {
  if (!line.has("fit")) return uncertainty::carried_by(steps, prior);
  std::vector<Unknown> unknowns = uncertainty::alone_in(steps);
  const std::size_t alone = unknowns.size();
  const std::string list = line.get("fit");
  for (const std::string_view word : split(list, ',')) {
    const Unknown unknown = value_in(uncertainty::unknown_names, std::string(word), "--fit");
    const bool is_told = std::any_of(steps.begin(), steps.end(), [&](const MeasuredStep& step) {
      return uncertainty::log_slopes(step.predicted, prior.mean)[at(unknown)] != 0;
    });
    const bool none_inside = unknown == Unknown::exchange && prior.crossing_apart &&
                             std::none_of(steps.begin(), steps.end(), [](const MeasuredStep& step) {
                               return step.predicted.exchange > 0;
                             });
    if (prior.deviation[at(unknown)] == 0 || none_inside || (unknown == Unknown::nic && !is_told)) {
      throw UsageError(fmt::format(
          "--fit {}: no row says anything about it: experts and layer-alone need rows of layers, "
          "exchange-alone rows of exchanges, nic rows of exchanges between nodes, exchange beside "
          "these exchanges inside one",
          word));
    }
    if (std::find(unknowns.begin(), unknowns.end(), unknown) == unknowns.end()) {
      unknowns.push_back(unknown);
    }
  }
  if (unknowns.size() > steps.size()) {
    throw UsageError(fmt::format(
        "{}: {} do not determine the {} parameters of --fit {}{}: add rows, or fit fewer",
        fmt::join(line.positionals, ", "), counted_rows(rows), unknowns.size(), list,
        alone > 0 ? " and of what is measured alone" : ""));
  }
  return unknowns;
}

// Whose published steps a row's column software names: a document stands for what it was fitted
// from. "": nobody's.
std::string software_in(const CalibrationRow& row) {
  const std::vector<std::string> known = shipped_errors().residuals().software();
  const bool is_known = std::find(known.begin(), known.end(), row.software) != known.end();
  if (row.software.empty() || is_known) return row.software;
  if (names_own_software(row.software)) {
    try {
      return StepSoftware::load(row.software).software;
    } catch (const Error& error) {
      throw UsageError(
          fmt::format("{}, column software: {}; --software says it for all rows, an empty cell "
                      "that it is not known",
                      row.where(), error.what()));
    }
  }
  throw UsageError(fmt::format(
      "{}, column software: unknown '{}'{}; with published steps: {}; leave the cell "
      "empty for another, or name the column note",
      row.where(), row.software, suggestion(row.software, known), fmt::join(known, ", ")));
}

// --software, else what the column software of the rows says; "": nothing does. Throws UsageError
// for rows that say two.
std::string requested_software(const CommandLine& line, const std::vector<CalibrationRow>& rows) {
  if (line.has("software")) {
    const std::string& typed = line.get("software");
    const auto other = std::find_if(rows.begin(), rows.end(), [&](const CalibrationRow& row) {
      return !row.software.empty() && row.software != typed;
    });
    if (other != rows.end()) {
      note(fmt::format("note: --software {} holds for all rows: {} has {} in the column software",
                       typed, other->where(), other->software));
    }
    return typed;
  }
  const CalibrationRow* first = nullptr;
  std::string software;
  for (const CalibrationRow& row : rows) {
    const std::string said = software_in(row);
    if (said.empty()) continue;
    if (first == nullptr) {
      first = &row;
      software = said;
    }
    if (said == software) continue;
    throw UsageError(fmt::format(
        "{}, column software: {}, line {}{} has {}: calibrate them apart, or say with --software "
        "whose published steps are known before",
        row.where(), said, first->line, row.file == first->file ? "" : " of " + first->file,
        software));
  }
  return software;
}

// The prior of the rows: of several models have one software all the same. Exchanges alone say
// nothing of a model.
uncertainty::SoftwarePrior prior_for(const std::vector<CalibrationRow>& rows,
                                     const std::vector<MeasuredStep>& steps,
                                     const std::string& software) {
  std::vector<uncertainty::Subject> subjects;
  for (const CalibrationRow& row : rows) {
    if (is_step(row)) subjects.push_back(subject_of(*row.prediction.job, software));
  }
  for (const CalibrationRow& row : rows) {
    if (!subjects.empty() || !row.prediction.job) continue;
    subjects.push_back(subject_of(*row.prediction.job, software));
  }
  if (subjects.empty()) subjects.push_back({software, rows.front().prediction.machine, "", false});
  std::vector<uncertainty::SoftwarePrior> priors;
  for (const uncertainty::Subject& subject : subjects) {
    priors.push_back(uncertainty::prior_of(shipped_errors(), subject));
  }
  return uncertainty::prior_with(uncertainty::mixture_of(priors), steps);
}

// A fixed cost that is asked for by name may be a fifth of the shortest step, and not 20 ms alone.
void widen_fixed_cost(const std::vector<Unknown>& free, const std::vector<MeasuredStep>& steps,
                      uncertainty::SoftwarePrior& prior) {
  constexpr double share = 0.2;
  if (std::find(free.begin(), free.end(), Unknown::fixed_ms) == free.end()) return;
  double shortest = std::numeric_limits<double>::infinity();
  for (const MeasuredStep& step : steps) {
    if (step.predicted.kind == uncertainty::RowKind::step) {
      shortest = std::min(shortest, step.measured_ms);
    }
  }
  double& deviation = prior.deviation[at(Unknown::fixed_ms)];
  if (std::isfinite(shortest)) deviation = std::max(deviation, share * shortest);
}

std::string name_of_document(const CommandLine& line) {
  const std::string out = line.get("out");
  return line.get("name", out.empty() ? "own" : std::filesystem::path(out).stem().string());
}

std::string source_of(const CommandLine& line) {
  std::vector<std::string> files;
  for (const std::string& path : line.positionals) {
    files.push_back(std::filesystem::path(path).filename().string());
  }
  return fmt::format("moesim calibrate {}", fmt::join(files, " "));
}

StepSoftware named_software(const CommandLine& line, const std::string& published,
                            const std::vector<CalibrationRow>& rows, const StepFit& fit,
                            const std::vector<double>& left_out) {
  StepSoftware software = uncertainty::software_of(fit);
  software.prices_host = true;
  software.name = name_of_document(line);
  software.software = published;
  software.source = source_of(line);
  software.machine = rows.front().prediction.machine;
  software.profile = rows.front().prediction.profile;
  software.measured.machine = software.machine;
  std::set<std::string> models;
  std::set<std::string> precisions;
  std::set<std::string> clusters;
  for (const CalibrationRow& row : rows) {
    if (row.step.predicted.kind == uncertainty::RowKind::exchange) {
      software.exchanges[row.step.predicted.crossing > 0 ? 1 : 0].add(row.prediction.size);
    }
    if (!row.prediction.job) continue;
    clusters.insert(row.prediction.job->cluster->name);
    models.insert(row.prediction.job->model->name);
    precisions.insert(model::name_of(row.prediction.job->states.precision));
    software.measured.add(row.prediction.step
                              ? uncertainty::traits_of(*row.prediction.job, *row.prediction.step)
                              : uncertainty::traits_of_layer(*row.prediction.job));
  }
  software.models = {models.begin(), models.end()};
  software.precisions = {precisions.begin(), precisions.end()};
  software.clusters = {clusters.begin(), clusters.end()};
  const bool has_steps = std::any_of(rows.begin(), rows.end(), is_step);
  // Layers alone do not say what a step has.
  if (!has_steps) software.measured.most.clear();
  // Of steps, where there are any.
  std::vector<double> errors;
  for (std::size_t row = 0; row < left_out.size(); ++row) {
    if (has_steps && !is_step(rows[row])) continue;
    errors.push_back(std::abs(std::exp(-left_out[row]) - 1));
  }
  if (errors.empty()) return software;
  software.median_error = median(errors);
  software.worst_error = *std::max_element(errors.begin(), errors.end());
  return software;
}

// Steps in bf16 and in lower precision that are off by different factors have no level in common.
void note_precisions(const std::vector<CalibrationRow>& rows) {
  constexpr double apart = 0.15;
  std::vector<double> logs[2];
  for (const CalibrationRow& row : rows) {
    if (!is_step(row)) continue;
    const bool is_low = row.prediction.job->states.precision != model::Precision::bf16;
    logs[is_low].push_back(std::log(row.step.measured_ms / row.step.predicted.total()));
  }
  if (logs[0].empty() || logs[1].empty()) return;
  const double bf16 = median(logs[0]);
  const double low = median(logs[1]);
  if (std::abs(bf16 - low) < apart) return;
  note(fmt::format(
      "warning: rows in bf16 take {:.2f} times their prediction, in lower precision {:.2f}: "
      "calibrate them apart, a file for each",
      std::exp(bf16), std::exp(low)));
}

// Layers or exchanges that are off by quite other factors than steps contradict them: more likely
// than not they hold something else than was predicted.
void note_kinds(const std::vector<CalibrationRow>& rows) {
  constexpr double apart = 0.7;  // a factor of two
  std::map<uncertainty::RowKind, std::vector<double>> logs;
  for (const CalibrationRow& row : rows) {
    logs[row.step.predicted.kind].push_back(
        std::log(row.step.measured_ms / row.step.predicted.total()));
  }
  const auto steps = logs.find(uncertainty::RowKind::step);
  if (steps == logs.end()) return;
  for (const auto& [kind, values] : logs) {
    if (std::abs(median(values) - median(steps->second)) < apart) continue;
    note(fmt::format(
        "warning: {0}s take {1:.2f} times their prediction, steps {2:.2f}: they contradict each "
        "other: is a {0} of the same software, on the same GPUs, of one {3}?",
        name_in(uncertainty::row_kind_names, kind), std::exp(median(values)),
        std::exp(median(steps->second)),
        kind == uncertainty::RowKind::layer ? "micro-batch and one pass" : "operation, alone"));
  }
}

// What the rows say of exchanges that are measured alone.
std::string nic_text(const StepSoftware& software) {
  const bool inside = software.has_exchanges(false);
  const bool across = software.has_exchanges(true);
  std::string text;
  if (across) {
    const auto nics = software.exchange_factor(true, 0.68);
    text = fmt::format(
        "exchanges through NICs take {:.3f} times their prediction: NICs carry {:.0f} % of what "
        "they were expected to\n",
        nics.factor, 100 / nics.factor);
  }
  if (inside != across) {
    text += fmt::format("no row is an exchange {}: predict does not scale these\n",
                        inside ? "between domains" : "inside a domain");
  }
  return text;
}

// A file in this folder is no shipped name.
std::string as_profile(const std::string& out) {
  return out.find('/') == std::string::npos && out.find(".json") == std::string::npos ? "./" + out
                                                                                      : out;
}

void note_written(const std::string& out, const StepSoftware& software) {
  const std::string path = as_profile(out);
  note(fmt::format("calibrate: {} written: moesim train ... --profile {}{}", out, path,
                   software.scatter(uncertainty::RowKind::exchange).rows > 0
                       ? "; moesim predict --profile " + path + " --op all-to-all ..."
                       : ""));
}

// A row that is far from what all others say of it is mostly a wrong unit or option.
void warn_of_odd_rows(const std::vector<CalibrationRow>& rows,
                      const std::vector<double>& left_out) {
  if (left_out.empty()) return;
  constexpr double odd = 2;  // times off, or by as much too short
  constexpr double of_usual = 3;
  std::vector<double> errors;
  for (const double each : left_out) errors.push_back(std::abs(each));
  const double usual = median(errors);
  for (std::size_t row = 0; row < left_out.size(); ++row) {
    if (errors[row] < std::max(std::log(odd), of_usual * usual)) continue;
    note(
        fmt::format("warning: {}: measured is {:.2g} times what the other rows predict: check its "
                    "unit and options, or leave it out; it moves what is fitted",
                    rows[row].where(), std::exp(left_out[row])));
  }
}

// What is fitted to rows that say nothing of one another, or to steps of something else. The latter
// are told by what they take beside their prediction, whichever parameter the fit finds for it.
void warn_of_fit(const std::vector<CalibrationRow>& rows, const uncertainty::SoftwarePrior& prior,
                 const std::vector<double>& left_out) {
  constexpr double most_off = 0.5;
  constexpr double most_deviations = 3;
  std::vector<double> errors;
  for (const double each : left_out) errors.push_back(std::abs(std::exp(-each) - 1));
  if (!errors.empty() && median(errors) > most_off) {
    note(
        fmt::format("warning: rows are {:.0f} % off in the median when the others predict them: "
                    "what is fitted says little: check their units and options",
                    100 * median(errors)));
  }
  std::vector<double> logs;
  for (const CalibrationRow& row : rows) {
    if (!is_step(row)) continue;
    logs.push_back(std::log(row.step.measured_ms / row.step.predicted.total()));
  }
  if (logs.empty()) return;
  const double off = median(logs);
  const double before = prior.mean[at(Unknown::level)];
  const double deviation = prior.deviation[at(Unknown::level)];
  if (deviation > 0 && std::abs(off - before) > most_deviations * deviation) {
    note(
        fmt::format("warning: rows take {:.2f} times their prediction, published steps mostly "
                    "{:.2f} to {:.2f}: is each of a whole step of this model, global batch and "
                    "number of GPUs?",
                    std::exp(off), std::exp(before - deviation), std::exp(before + deviation)));
  }
}

// Repeats of one configuration do not tell how far others scatter.
void warn_of_one_configuration(const std::vector<CalibrationRow>& rows) {
  if (rows.size() > 1) return;
  note(
      fmt::format("warning: {}: they tell its level, not how far other configurations are from it: "
                  "bands stay wide and none is left out: add steps of other layouts",
                  counted_rows(rows)));
}

ExitCode not_kept() {
  note("calibrate: nothing is kept without --out FILE");
  return ExitCode::ok;
}

std::string decided_text(const std::vector<CalibrationRow>& rows, double effective,
                         std::size_t parameters) {
  return fmt::format(
      "{} decide {:.1f} of {} parameter{}, published steps and assumptions the "
      "rest\n",
      counted_rows(rows), effective, parameters, parameters == 1 ? "" : "s");
}

ExitCode calibrate_train(const CommandLine& line) {
  TrainRows predictor;
  const std::vector<CalibrationRow> measured =
      load_calibration_rows(line.positionals, line, predictor);
  const std::string published = requested_software(line, measured);
  std::vector<CalibrationRow> rows = configurations_of(measured);
  price_hosts(rows);
  uncertainty::SoftwarePrior prior = prior_for(rows, steps_of(rows), published);
  const std::vector<Unknown> free = requested_unknowns(line, rows, steps_of(rows), prior);
  if (line.has("fit")) widen_fixed_cost(free, steps_of(rows), prior);
  const StepFit fit = fit_with_hosts(rows, free, prior);
  const std::vector<MeasuredStep> steps = steps_of(rows);
  const std::vector<double> left_out = uncertainty::left_out_errors(steps, free, prior);
  std::vector<double> calibrated_ms;
  for (const MeasuredStep& step : steps) {
    calibrated_ms.push_back(step.scaled_ms(fit.unknowns));
  }
  const StepSoftware software = named_software(line, published, rows, fit, left_out);
  Output("").write(fmt::format("{}\n{}\n{}{}{}{}", rows_table(rows, calibrated_ms, left_out),
                               fit_table(fit, free, prior),
                               decided_text(rows, fit.effective, free.size()), rival_text(fit),
                               errors_text(rows, fit, left_out, prior), nic_text(software)));
  note_precisions(rows);
  note_kinds(rows);
  warn_of_one_configuration(rows);
  warn_of_odd_rows(rows, left_out);
  warn_of_fit(rows, prior, left_out);
  const std::string out = line.get("out");
  if (out.empty()) return not_kept();
  write_file_atomically(out, software.text());
  note_written(out, software);
  return ExitCode::ok;
}

// What simulate says of each row is scaled by factors that its profile can have: of all classes of
// kernels alike, and of exchanges.
ExitCode calibrate_simulate(const CommandLine& line) {
  if (line.has("software")) {
    throw UsageError(
        "--software: of train; with --command simulate all published steps are known before");
  }
  routing::RoutingCache cache(std::size_t{4} << 30);
  SimulateRows predictor(cache);
  const std::vector<CalibrationRow> rows =
      configurations_of(load_calibration_rows(line.positionals, line, predictor));
  std::vector<study::MeasuredScenario> measured;
  for (const CalibrationRow& row : rows) {
    measured.push_back({*row.prediction.scenario, row.step.measured_ms});
  }
  const uncertainty::SoftwarePrior prior = study::scenario_prior(measured);
  std::vector<Unknown> free;
  if (line.has("fit")) {
    const std::string list = line.get("fit");
    for (const std::string_view word : split(list, ',')) {
      if (word == "level" || word == "exchange") continue;
      throw UsageError(
          fmt::format("--fit {}: with --command simulate, level and exchange: its profiles have no "
                      "other factors",
                      word));
    }
    free = requested_unknowns(line, rows, steps_of(rows), prior);
  }
  const study::ScenarioFit fit = study::fit_scenarios(measured, free, prior, cache);
  Output("").write(fmt::format("{}\n{}\n{}{}", rows_table(rows, fit.calibrated_ms, fit.left_out),
                               fit_table(fit.fit, fit.free, prior),
                               decided_text(rows, fit.fit.effective, fit.free.size()),
                               errors_text(rows, fit.fit, fit.left_out, prior)));
  warn_of_one_configuration(rows);
  warn_of_odd_rows(rows, fit.left_out);
  warn_of_fit(rows, prior, fit.left_out);
  const std::string out = line.get("out");
  if (out.empty()) return not_kept();
  write_file_atomically(
      out, study::software_document(name_of_document(line), rows.front().prediction.profile,
                                    source_of(line), measured, fit)
               .text());
  note(
      fmt::format("calibrate: {0} written: moesim simulate ... --profile {1}; moesim sweep ... "
                  "--profile {1}",
                  out, as_profile(out)));
  return ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError(
        "calibrate: which file? A CSV with the column measured_ms and options of train (or, with "
        "--command simulate, of simulate) as columns");
  }
  const bool of_simulate = value_in(command_names, line.get("command", "train"), "--command");
  if (line.has("out")) check_writable(line.get("out"));
  return of_simulate ? calibrate_simulate(line) : calibrate_train(line);
}

std::vector<Flag> flags() {
  std::vector<Flag> flags = {
      {"command",
       "NAME",
       "train",
       "whose options the columns are, and who takes the document:",
       {{"train", "steps, layers and exchanges of any layout"},
        {"simulate", "steps and forward passes of simulate and sweep"}}},
      {"out", "FILE", "none", "the document, for --profile"},
      {"name", "NAME", "that of the file", "its name"},
      with_words({"software", "NAME", "the column software",
                  "whose published steps are known before: megatron-bridge, simumax, aws"},
                 software_words),
      {"fit", "LIST", "what the rows can carry", "parameters:", {}}};
  for (const auto& unknown : uncertainty::unknown_names) {
    flags.back().choices.push_back({unknown.name, unknown.meaning});
  }
  for (const Flag& flag : hardware_flags()) flags.push_back(flag);
  const auto is_there = [&](const std::string& name) {
    return std::any_of(flags.begin(), flags.end(),
                       [&](const Flag& flag) { return flag.name == name; });
  };
  for (const scenario::Option& option : scenario::scenario_options()) {
    if (is_there(option.name)) continue;
    flags.push_back({option.name, option.placeholder, option.default_text,
                     "with --command simulate: " + option.help, option.values});
  }
  return flags;
}

}  // namespace

Command calibrate_command() {
  Command command = {
      "calibrate",
      "fit your own software to a few measured steps, layers, exchanges",
      "FILE... [options]",
      "moesim calibrate steps.csv --profile h100-sxm --out mine.json",
      flags(),
      false,
      most_files,
      run,
      "FILE: a CSV with a row for each measured time: measured_ms (or measured_us) and options "
      "of\n"
      "train as columns; an option of this command holds for rows that have none of their own.\n"
      "With --command simulate they are options of simulate, with its values and defaults; a CSV\n"
      "of sweep with measured_ms added will do.\n"
      "Column op: step (or empty), moe-layer (gate to combined rows) or layer with pass forward "
      "or\n"
      "backward, all-to-all and the other exchanges of predict with gpus, bytes or their\n"
      "parameters. Three steps of different layouts help; repeats of one count as one row.\n"
      "The host's launches and reads get a factor: steps are priced with it, so that waiting for "
      "the\n"
      "host begins where it does; it multiplies --launch-us and --host-read-us of train.\n"
      "Exchanges get one factor inside a domain and one across: logs of nccl-tests tell it by "
      "size\n"
      "(moesim import).\n"};
  command.takes_profile_of_cluster = false;
  return command;
}

}  // namespace moesim::tool
