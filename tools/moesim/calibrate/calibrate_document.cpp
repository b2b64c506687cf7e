#include "tools/moesim/calibrate/calibrate_document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "sim/base/statistics.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/calibrate/calibrate_report.hpp"

namespace moesim::tool {

using uncertainty::StepFit;
using uncertainty::StepSoftware;

namespace {

// Adds what the rows are of: models, precisions, clusters, traits of steps, sizes of exchanges.
void add_measured(const std::vector<CalibrationRow>& rows, StepSoftware& software) {
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
  // Layers alone do not say what a step has.
  if (std::none_of(rows.begin(), rows.end(), is_step)) software.measured.most.clear();
}

// Adds the errors of rows left out: those of steps, where there are any.
void add_errors(const std::vector<CalibrationRow>& rows, const std::vector<double>& left_out,
                StepSoftware& software) {
  const bool has_steps = std::any_of(rows.begin(), rows.end(), is_step);
  std::vector<double> errors;
  for (std::size_t row = 0; row < left_out.size(); ++row) {
    if (has_steps && !is_step(rows[row])) continue;
    errors.push_back(std::abs(std::exp(-left_out[row]) - 1));
  }
  if (errors.empty()) return;
  software.median_error = median(errors);
  software.worst_error = *std::max_element(errors.begin(), errors.end());
}

}  // namespace

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
  add_measured(rows, software);
  add_errors(rows, left_out, software);
  return software;
}

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

}  // namespace moesim::tool
