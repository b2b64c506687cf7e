#include "tools/moesim/calibrate/calibrate_warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/base/statistics.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/calibrate/calibrate_report.hpp"

namespace moesim::tool {

using uncertainty::Unknown;

namespace {

// The log of a measured time over its prediction.
double log_ratio(const CalibrationRow& row) {
  return std::log(row.step.measured_ms / row.step.predicted.total());
}

}  // namespace

void note_precisions(const std::vector<CalibrationRow>& rows) {
  constexpr double apart = 0.15;
  std::vector<double> logs[2];
  for (const CalibrationRow& row : rows) {
    if (!is_step(row)) continue;
    const bool is_low = row.prediction.job->states.precision != model::Precision::bf16;
    logs[is_low].push_back(log_ratio(row));
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

void note_clusters(const std::vector<CalibrationRow>& rows) {
  constexpr double apart = 0.15;
  std::map<std::string, std::vector<double>> logs;
  for (const CalibrationRow& row : rows) {
    if (is_step(row)) logs[row.prediction.job->cluster->name].push_back(log_ratio(row));
  }
  if (logs.size() < 2) return;
  const auto less = [](const auto& one, const auto& other) {
    return median(one.second) < median(other.second);
  };
  const auto [least, most] = std::minmax_element(logs.begin(), logs.end(), less);
  if (median(most->second) - median(least->second) < apart) return;
  note(fmt::format(
      "warning: rows on {} take {:.2f} times their prediction, on {} {:.2f}: the document has one "
      "level for both: calibrate them apart, a file for each",
      least->first, std::exp(median(least->second)), most->first, std::exp(median(most->second))));
}

void note_kinds(const std::vector<CalibrationRow>& rows) {
  constexpr double apart = 0.7;  // a factor of two
  std::map<uncertainty::RowKind, std::vector<double>> logs;
  for (const CalibrationRow& row : rows) {
    logs[row.step.predicted.kind].push_back(log_ratio(row));
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

void warn_of_one_configuration(const std::vector<CalibrationRow>& rows) {
  if (rows.size() > 1) return;
  note(
      fmt::format("warning: {}: that tells its level, not how far other configurations are from "
                  "it: bands stay wide and none is left out: add steps of other layouts",
                  counted_rows(rows)));
}

void warn_of_odd_rows(const std::vector<CalibrationRow>& rows,
                      const std::vector<double>& left_out) {
  if (left_out.empty()) return;
  constexpr double odd = 2;  // times off, or by as much too short
  // Of the farthest row alone: it makes others look far off, which are less so. Configurations
  // scatter by 7 to 16 %.
  constexpr double farthest_odd = 1.25;
  constexpr double of_usual = 3;
  std::vector<double> errors;
  for (const double each : left_out) errors.push_back(std::abs(each));
  const double usual = median(errors);
  const double farthest = *std::max_element(errors.begin(), errors.end());
  for (std::size_t row = 0; row < left_out.size(); ++row) {
    const double least = errors[row] == farthest ? farthest_odd : odd;
    if (errors[row] < std::max(std::log(least), of_usual * usual)) continue;
    note(
        fmt::format("warning: {}: measured is {:.2g} times what the other rows predict: check its "
                    "unit and options, or leave it out; it moves what is fitted",
                    rows[row].where(), std::exp(left_out[row])));
  }
}

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
    logs.push_back(log_ratio(row));
  }
  if (logs.empty()) return;
  const double off = median(logs);
  const double before = prior.mean[at(Unknown::level)];
  const double deviation = prior.deviation[at(Unknown::level)];
  if (deviation > 0 && std::abs(off - before) > most_deviations * deviation) {
    note(
        fmt::format("warning: rows take {:.2f} times their prediction, published steps mostly "
                    "{:.2f} to {:.2f}: is each of a whole step of this model, global batch and "
                    "number of GPUs, with the recomputation of its row?",
                    std::exp(off), std::exp(before - deviation), std::exp(before + deviation)));
  }
}

}  // namespace moesim::tool
