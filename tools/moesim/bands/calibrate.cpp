#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
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

std::size_t at(Unknown unknown) { return static_cast<std::size_t>(unknown); }

// --fit, or what the rows can carry. Throws UsageError for more unknowns than rows.
std::vector<Unknown> requested_unknowns(const CommandLine& line, const std::string& path,
                                        const std::vector<MeasuredStep>& steps,
                                        const uncertainty::SoftwarePrior& prior) {
  if (!line.has("fit")) return uncertainty::carried_by(steps, prior);
  std::vector<Unknown> unknowns;
  const std::string list = line.get("fit");
  for (const std::string_view word : split(list, ',')) {
    const Unknown unknown = value_in(uncertainty::unknown_names, std::string(word), "--fit");
    if (std::find(unknowns.begin(), unknowns.end(), unknown) == unknowns.end()) {
      unknowns.push_back(unknown);
    }
  }
  if (unknowns.size() > steps.size()) {
    throw UsageError(fmt::format(
        "{}: {} rows do not determine the {} parameters of --fit {}: add rows, or fit fewer", path,
        steps.size(), unknowns.size(), line.get("fit")));
  }
  return unknowns;
}

// The prior of the first row; rows of several models have one software all the same.
uncertainty::SoftwarePrior prior_for(const std::vector<CalibrationRow>& rows,
                                     const std::string& software) {
  uncertainty::SoftwarePrior prior;
  double mean = 0;
  for (const CalibrationRow& row : rows) {
    prior = uncertainty::prior_of(shipped_errors(), subject_of(row.job, software));
    mean += prior.mean[at(Unknown::level)] / static_cast<double>(rows.size());
  }
  prior.mean[at(Unknown::level)] = mean;
  return prior;
}

StepSoftware software_of(const std::string& name, const std::string& path,
                         const std::vector<CalibrationRow>& rows, const StepFit& fit,
                         const std::vector<double>& left_out) {
  StepSoftware software = uncertainty::software_of(fit, rows.size());
  software.name = name;
  software.source =
      fmt::format("moesim calibrate {}", std::filesystem::path(path).filename().string());
  software.machine = rows.front().job.profile->device().name;
  std::set<std::string> models;
  std::set<std::string> precisions;
  for (const CalibrationRow& row : rows) {
    models.insert(row.job.model->name);
    precisions.insert(model::name_of(row.job.states.precision));
  }
  software.models = {models.begin(), models.end()};
  software.precisions = {precisions.begin(), precisions.end()};
  std::vector<double> errors;
  for (const double log : left_out) errors.push_back(std::abs(std::exp(-log) - 1));
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
    lines.push_back({fmt::format("{}", rows[row].line), fmt::format("{:.4g}", step.measured_ms),
                     fmt::format("{:.4g}", step.predicted.total()),
                     fmt::format("{:.4g}", calibrated),
                     percent(std::log(step.measured_ms / calibrated)), percent(left_out[row]),
                     rows[row].options});
  }
  return report::align(lines, {true, true, true, true, true, true, false});
}

std::string fit_table(const StepFit& fit, const std::vector<Unknown>& free,
                      const uncertainty::SoftwarePrior& prior) {
  std::vector<std::vector<std::string>> lines = {{"fitted", "value", "68 %", "before", ""}};
  for (const auto& unknown : uncertainty::unknown_names) {
    const std::size_t place = at(unknown.value);
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
    const bool is_low = row.job.states.precision != model::Precision::bf16;
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

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError(
        "calibrate: which file? A CSV with the column measured_ms and options of train as columns");
  }
  const std::string path = line.positionals.front();
  const std::string out = line.get("out");
  if (!out.empty()) check_writable(out);
  const std::vector<CalibrationRow> rows = load_calibration_rows(path, line);
  std::vector<MeasuredStep> steps;
  for (const CalibrationRow& row : rows) steps.push_back(row.step);
  const uncertainty::SoftwarePrior prior = prior_for(rows, line.get("software"));
  const std::vector<Unknown> free = requested_unknowns(line, path, steps, prior);
  const StepFit fit = uncertainty::fit_steps(steps, free, prior);
  const std::vector<double> left_out = uncertainty::left_out_errors(steps, free, prior);
  const std::string name =
      line.get("name", out.empty() ? "own" : std::filesystem::path(out).stem().string());
  StepSoftware software = software_of(name, path, rows, fit, left_out);
  software.software = line.get("software");
  const std::string said = fmt::format(
      "{}\n{}\n{} rows decide {:.1f} of {} parameters, published steps the rest; scatter of "
      "configurations {:.1f} %\n"
      "each row left out: {:.1f} % off in the median, {:.1f} % at worst\n",
      rows_table(rows, fit, left_out), fit_table(fit, free, prior), rows.size(), fit.effective,
      free.size(), 100 * fit.scatter, 100 * software.median_error, 100 * software.worst_error);
  Output("").write(said);
  note_precisions(rows);
  if (out.empty()) {
    note("calibrate: nothing is kept without --out FILE");
    return ExitCode::ok;
  }
  write_file_atomically(out, software.text());
  note(fmt::format("calibrate: {} written: moesim train ... --software {}", out,
                   out.find('/') == std::string::npos && out.find(".json") == std::string::npos
                       ? "./" + out
                       : out));
  return ExitCode::ok;
}

std::vector<Flag> flags() {
  std::vector<Flag> flags = {
      {"out", "FILE", "none", "the document, for --software of train"},
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
  return {"calibrate",
          "fit your own software to a few measured training steps",
          "FILE [options]",
          "moesim calibrate steps.csv --profile h100-sxm --out mine.json",
          flags(),
          false,
          1,
          run,
          "FILE: a CSV with a step a row, its measured_ms, and options of train as columns; an\n"
          "option of this command holds for rows that have none of their own. Three steps help.\n"};
}

}  // namespace moesim::tool
