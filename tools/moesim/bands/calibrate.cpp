#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "sim/base/file.hpp"
#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"
#include "tools/moesim/bands/calibrate_rows.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using uncertainty::MeasuredStep;
using uncertainty::StepFit;
using uncertainty::StepSoftware;
using uncertainty::Unknown;

constexpr std::size_t most_files = 64;

std::size_t at(Unknown unknown) { return static_cast<std::size_t>(unknown); }

// --fit, or what the rows can carry. Throws UsageError for more unknowns than rows, and for one
// that no row says anything about.
std::vector<Unknown> requested_unknowns(const CommandLine& line,
                                        const std::vector<MeasuredStep>& steps,
                                        const uncertainty::SoftwarePrior& prior) {
  if (!line.has("fit")) return uncertainty::carried_by(steps, prior);
  std::vector<Unknown> unknowns = uncertainty::alone_in(steps);
  const std::size_t alone = unknowns.size();
  const std::string list = line.get("fit");
  for (const std::string_view word : split(list, ',')) {
    const Unknown unknown = value_in(uncertainty::unknown_names, std::string(word), "--fit");
    if (prior.deviation[at(unknown)] == 0) {
      throw UsageError(fmt::format(
          "--fit {}: no row says anything about it: experts and layer-alone need rows of layers, "
          "exchange-alone rows of exchanges, nic rows of exchanges between nodes",
          word));
    }
    if (std::find(unknowns.begin(), unknowns.end(), unknown) == unknowns.end()) {
      unknowns.push_back(unknown);
    }
  }
  if (unknowns.size() > steps.size()) {
    throw UsageError(fmt::format(
        "{}: {} rows do not determine the {} parameters of --fit {}{}: add rows, or fit fewer",
        fmt::join(line.positionals, ", "), steps.size(), unknowns.size(), list,
        alone > 0 ? " and of what is measured alone" : ""));
  }
  return unknowns;
}

bool is_step(const CalibrationRow& row) {
  return row.step.predicted.kind == uncertainty::RowKind::step;
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
  uncertainty::SoftwarePrior prior;
  double mean = 0;
  for (const uncertainty::Subject& subject : subjects) {
    prior = uncertainty::prior_of(shipped_errors(), subject);
    mean += prior.mean[at(Unknown::level)] / static_cast<double>(subjects.size());
  }
  prior.mean[at(Unknown::level)] = mean;
  return uncertainty::prior_with(prior, steps);
}

StepSoftware named_software(const std::string& name, const CommandLine& line,
                            const std::vector<CalibrationRow>& rows, const StepFit& fit,
                            const std::vector<double>& left_out) {
  StepSoftware software = uncertainty::software_of(fit);
  software.name = name;
  software.software = line.get("software");
  std::vector<std::string> files;
  for (const std::string& path : line.positionals) {
    files.push_back(std::filesystem::path(path).filename().string());
  }
  software.source = fmt::format("moesim calibrate {}", fmt::join(files, " "));
  software.machine = rows.front().prediction.machine;
  software.profile = rows.front().prediction.profile;
  std::set<std::string> models;
  std::set<std::string> precisions;
  for (const CalibrationRow& row : rows) {
    if (!row.prediction.job) continue;
    models.insert(row.prediction.job->model->name);
    precisions.insert(model::name_of(row.prediction.job->states.precision));
  }
  software.models = {models.begin(), models.end()};
  software.precisions = {precisions.begin(), precisions.end()};
  // Of steps, where there are any.
  const bool has_steps = std::any_of(rows.begin(), rows.end(), is_step);
  std::vector<double> errors;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (has_steps && !is_step(rows[row])) continue;
    errors.push_back(std::abs(std::exp(-left_out[row]) - 1));
  }
  software.median_error = median(errors);
  software.worst_error = *std::max_element(errors.begin(), errors.end());
  return software;
}

std::string rows_table(const std::vector<CalibrationRow>& rows, const StepFit& fit,
                       const std::vector<double>& left_out) {
  const auto percent = [](double log) {
    return fmt::format("{:+.1f} %", 100 * (std::exp(-log) - 1));
  };
  std::vector<std::vector<std::string>> lines = {
      {"line", "measured ms", "predicted", "calibrated", "off", "off, row left out", ""}};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const MeasuredStep& step = rows[row].step;
    const double calibrated = uncertainty::scaled_ms(step.predicted, fit.unknowns);
    std::string line = fmt::format("{}", rows[row].line);
    if (rows.front().file != rows.back().file) {
      line = fmt::format("{}:{}", std::filesystem::path(rows[row].file).filename().string(), line);
    }
    std::string what = is_step(rows[row]) ? "" : rows[row].op;
    if (!what.empty() && !rows[row].options.empty()) what += ", ";
    lines.push_back({line, fmt::format("{:.4g}", step.measured_ms),
                     fmt::format("{:.4g}", step.predicted.total()),
                     fmt::format("{:.4g}", calibrated),
                     percent(std::log(step.measured_ms / calibrated)), percent(left_out[row]),
                     what + rows[row].options});
  }
  return report::align(lines, {true, true, true, true, true, true, false});
}

std::string fit_table(const StepFit& fit, const std::vector<Unknown>& free,
                      const uncertainty::SoftwarePrior& prior) {
  std::vector<std::vector<std::string>> lines = {{"fitted", "value", "68 %", "before", ""}};
  for (const auto& unknown : uncertainty::unknown_names) {
    const std::size_t place = at(unknown.value);
    if (prior.deviation[place] == 0) continue;  // not in question
    const double value = fit.unknowns[place];
    const double deviation = std::sqrt(fit.covariance[place][place]);
    const auto shown = [&](double each) {
      return unknown.value == Unknown::fixed_ms ? fmt::format("{:.1f}", std::max(each, 0.0))
                                                : fmt::format("{:.3f}", std::exp(each));
    };
    const bool is_free = std::find(free.begin(), free.end(), unknown.value) != free.end();
    lines.push_back({unknown.name, shown(value),
                     fmt::format("{} to {}", shown(value - deviation), shown(value + deviation)),
                     fmt::format("{} ({} to {})", shown(prior.mean[place]),
                                 shown(prior.mean[place] - prior.deviation[place]),
                                 shown(prior.mean[place] + prior.deviation[place])),
                     std::string(unknown.meaning) + (is_free ? "" : "; not fitted")});
  }
  return report::align(lines, {false, true, true, true, false});
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

// Errors of rows left out, by kind.
std::string errors_text(const std::vector<CalibrationRow>& rows, const StepFit& fit,
                        const std::vector<double>& left_out) {
  std::string text;
  const bool only_steps = std::all_of(rows.begin(), rows.end(), is_step);
  for (const auto& kind : uncertainty::row_kind_names) {
    std::vector<double> errors;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (rows[row].step.predicted.kind != kind.value) continue;
      errors.push_back(std::abs(std::exp(-left_out[row]) - 1));
    }
    if (errors.empty()) continue;
    text += fmt::format(
        "each {} left out: {:.1f} % off in the median, {:.1f} % at worst; "
        "scatter {:.1f} %\n",
        only_steps ? "row" : kind.name, 100 * median(errors),
        100 * *std::max_element(errors.begin(), errors.end()),
        100 * fit.scatter(kind.value).deviation);
  }
  return text;
}

// What the rows say of exchanges that are measured alone.
std::string nic_text(const std::vector<CalibrationRow>& rows, const StepSoftware& software) {
  const auto crosses = [](const CalibrationRow& row) {
    return row.step.predicted.kind == uncertainty::RowKind::exchange &&
           row.step.predicted.crossing > 0;
  };
  if (std::none_of(rows.begin(), rows.end(), crosses)) return "";
  const auto nics = software.exchange_factor(true, 0.68);
  return fmt::format(
      "exchanges through NICs take {:.3f} times their prediction: NICs carry {:.0f} % of what they "
      "were expected to\n",
      nics.factor, 100 / nics.factor);
}

void note_written(const std::string& out, const StepSoftware& software) {
  const std::string path =
      out.find('/') == std::string::npos && out.find(".json") == std::string::npos ? "./" + out
                                                                                   : out;
  note(fmt::format("calibrate: {} written: moesim train ... --profile {}{}", out, path,
                   software.scatter(uncertainty::RowKind::exchange).rows > 0
                       ? "; moesim predict --profile " + path + " --op all-to-all ..."
                       : ""));
}

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError(
        "calibrate: which file? A CSV with the column measured_ms and options of train as columns");
  }
  const std::string out = line.get("out");
  if (!out.empty()) check_writable(out);
  const std::vector<CalibrationRow> rows = load_calibration_rows(line.positionals, line);
  std::vector<MeasuredStep> steps;
  for (const CalibrationRow& row : rows) steps.push_back(row.step);
  const uncertainty::SoftwarePrior prior = prior_for(rows, steps, line.get("software"));
  const std::vector<Unknown> free = requested_unknowns(line, steps, prior);
  const StepFit fit = uncertainty::fit_steps(steps, free, prior);
  const std::vector<double> left_out = uncertainty::left_out_errors(steps, free, prior);
  const std::string name =
      line.get("name", out.empty() ? "own" : std::filesystem::path(out).stem().string());
  const StepSoftware software = named_software(name, line, rows, fit, left_out);
  Output("").write(fmt::format(
      "{}\n{}\n{} rows decide {:.1f} of {} parameters, published steps and assumptions the rest\n"
      "{}{}",
      rows_table(rows, fit, left_out), fit_table(fit, free, prior), rows.size(), fit.effective,
      free.size(), errors_text(rows, fit, left_out), nic_text(rows, software)));
  note_precisions(rows);
  note_kinds(rows);
  if (out.empty()) {
    note("calibrate: nothing is kept without --out FILE");
    return ExitCode::ok;
  }
  write_file_atomically(out, software.text());
  note_written(out, software);
  return ExitCode::ok;
}

std::vector<Flag> flags() {
  std::vector<Flag> flags = {
      {"out", "FILE", "none", "the document, for --profile of train and predict"},
      {"name", "NAME", "that of the file", "its name"},
      {"software", "NAME", "not known",
       "whose published steps are known before: megatron-bridge, simumax, aws"},
      {"fit", "LIST", "what the rows can carry", "parameters:", {}}};
  for (const auto& unknown : uncertainty::unknown_names) {
    flags.back().choices.push_back({unknown.name, unknown.meaning});
  }
  for (const Flag& flag : train_flags()) flags.push_back(flag);
  return flags;
}

}  // namespace

Command calibrate_command() {
  return {
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
      "Column op: step (or empty), moe-layer (gate to combined rows) or layer with pass forward "
      "or\n"
      "backward, all-to-all and the other exchanges of predict with gpus, bytes or their\n"
      "parameters. Three steps help.\n"};
}

}  // namespace moesim::tool
