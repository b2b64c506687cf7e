#include "tools/moesim/calibrate/calibrate_prior.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/base/error.hpp"
#include "sim/base/repeated.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/uncertainty/software/step_fit.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/calibrate/calibrate_report.hpp"

namespace moesim::tool {

using uncertainty::MeasuredRow;
using uncertainty::Unknown;

namespace {

// Whose published steps a row's column software names: a document stands for what it was fitted
// from. "": nobody's.
std::string software_in(const CalibrationRow& row) {
  const std::vector<std::string> known = study::published_errors().residuals().software();
  const bool is_known = std::find(known.begin(), known.end(), row.software) != known.end();
  if (row.software.empty() || is_known) return row.software;
  if (study::names_own_software(row.software)) {
    try {
      return uncertainty::StepSoftware::load(row.software).software;
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

// Whether no row says anything about a parameter.
bool is_untold(Unknown unknown, const std::vector<MeasuredRow>& steps,
               const uncertainty::SoftwarePrior& prior) {
  if (prior.deviation[at(unknown)] == 0) return true;
  if (unknown == Unknown::exchange && prior.crossing_apart) {
    return std::none_of(steps.begin(), steps.end(),
                        [](const MeasuredRow& step) { return step.predicted.exchange > 0; });
  }
  if (unknown != Unknown::nic) return false;
  return std::none_of(steps.begin(), steps.end(), [&](const MeasuredRow& step) {
    return uncertainty::log_slopes(step.predicted, prior.mean)[at(unknown)] != 0;
  });
}

}  // namespace

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

uncertainty::SoftwarePrior prior_for(const std::vector<CalibrationRow>& rows,
                                     const std::vector<MeasuredRow>& steps,
                                     const std::string& software) {
  std::vector<uncertainty::Subject> subjects;
  for (const CalibrationRow& row : rows) {
    if (is_step(row)) subjects.push_back(study::subject_of(*row.prediction.job, software));
  }
  for (const CalibrationRow& row : rows) {
    if (!subjects.empty() || !row.prediction.job) continue;
    subjects.push_back(study::subject_of(*row.prediction.job, software));
  }
  if (subjects.empty()) subjects.push_back({software, rows.front().prediction.machine, "", false});
  std::vector<uncertainty::SoftwarePrior> priors;
  for (const uncertainty::Subject& subject : subjects) {
    priors.push_back(uncertainty::prior_of(study::published_errors(), subject));
  }
  return uncertainty::prior_with(uncertainty::mixture_of(priors), steps);
}

std::vector<Unknown> requested_unknowns(const CommandLine& line,
                                        const std::vector<CalibrationRow>& rows,
                                        const std::vector<MeasuredRow>& steps,
                                        const uncertainty::SoftwarePrior& prior) {
  if (!line.has("fit")) return uncertainty::carried_by(steps, prior);
  std::vector<Unknown> unknowns = uncertainty::alone_in(steps);
  const std::size_t alone = unknowns.size();
  const std::string list = line.get("fit");
  const std::vector<std::string_view> words = split(list, ',');
  refuse_repeated(words, "--fit");
  for (const std::string_view word : words) {
    const Unknown unknown = value_in(uncertainty::unknown_names, std::string(word), "--fit");
    if (is_untold(unknown, steps, prior)) {
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

void widen_fixed_cost(const std::vector<Unknown>& free, const std::vector<MeasuredRow>& steps,
                      uncertainty::SoftwarePrior& prior) {
  constexpr double share = 0.2;
  if (std::find(free.begin(), free.end(), Unknown::fixed_ms) == free.end()) return;
  double shortest = std::numeric_limits<double>::infinity();
  for (const MeasuredRow& step : steps) {
    if (step.predicted.kind == uncertainty::RowKind::step) {
      shortest = std::min(shortest, step.measured_ms);
    }
  }
  double& deviation = prior.deviation[at(Unknown::fixed_ms)];
  if (std::isfinite(shortest)) deviation = std::max(deviation, share * shortest);
}

}  // namespace moesim::tool
