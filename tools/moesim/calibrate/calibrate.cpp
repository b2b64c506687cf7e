#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/repeated.hpp"
#include "sim/base/text.hpp"
#include "sim/study/calibration/scenario_fit.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/calibrate/calibrate_document.hpp"
#include "tools/moesim/calibrate/calibrate_hosts.hpp"
#include "tools/moesim/calibrate/calibrate_prior.hpp"
#include "tools/moesim/calibrate/calibrate_report.hpp"
#include "tools/moesim/calibrate/calibrate_warnings.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using uncertainty::MeasuredRow;
using uncertainty::StepFit;
using uncertainty::StepSoftware;
using uncertainty::Unknown;

constexpr std::size_t most_files = 64;

// Whose predictions the rows are beside.
constexpr EnumNames<bool, 2> command_names{{{false, "train"}, {true, "simulate"}}};

ExitCode not_kept() {
  note("calibrate: nothing is kept without --out FILE");
  return ExitCode::ok;
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
  const std::vector<MeasuredRow> steps = steps_of(rows);
  const std::vector<double> left_out = uncertainty::left_out_errors(steps, free, prior);
  std::vector<double> calibrated_ms;
  for (const MeasuredRow& step : steps) {
    calibrated_ms.push_back(step.scaled_ms(fit.unknowns));
  }
  const StepSoftware software = named_software(line, published, rows, fit, left_out);
  Output("").write(fmt::format("{}\n{}\n{}{}{}{}", rows_table(rows, calibrated_ms, left_out),
                               fit_table(fit, free, prior),
                               decided_text(rows, fit.effective, free.size()), rival_text(fit),
                               errors_text(rows, fit, left_out, prior), nic_text(software)));
  note_precisions(rows);
  note_clusters(rows);
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
    const std::vector<std::string_view> words = split(list, ',');
    refuse_repeated(words, "--fit");
    for (const std::string_view word : words) {
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
                 study::published_software),
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
      "FILE: a CSV with a row for each measured time: measured_ms (or measured_us, or of a step\n"
      "tokens_per_s_per_gpu) and options of train as columns; or a log of Megatron-LM, which is\n"
      "one step. An option of this command holds for rows that have none of their own.\n"
      "With --command simulate they are options of simulate, with its values and defaults; a CSV\n"
      "of sweep with measured_ms added will do.\n"
      "Column op: step (or empty), moe-layer (gate to combined rows) or layer with pass forward "
      "or\n"
      "backward, all-to-all and the other exchanges of predict with gpus, bytes or their\n"
      "parameters. Three steps of different layouts help; one is taken, repeats count as one.\n"
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
