#include "sim/study/validation/paper/speed_bands.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "sim/cluster/measured_between.hpp"
#include "sim/study/validation/tables/band_points.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"
#include "sim/uncertainty/published/error_model.hpp"
#include "sim/uncertainty/published/shipped_errors.hpp"

namespace moesim::study {
namespace {

using uncertainty::Observation;

constexpr const char* components_of = "steps";  // the shipped errors of simulated steps
constexpr std::size_t fewest = 3;

struct JudgedRow {
  const StudyRow* row = nullptr;
  Observation observation;
};

std::vector<JudgedRow> judged_rows(const StudyResult& result) {
  std::vector<JudgedRow> rows;
  for (const StudyRow& row : result.rows) {
    const bool counts = row.published.role == RowRole::fit || row.published.role == RowRole::check;
    const std::optional<double> error = row.left_out_error ? row.left_out_error : row.error;
    if (!counts || !error) continue;
    JudgedRow judged{&row, {}};
    judged.observation.subject.software = uncertainty::profile_software("of this study");
    judged.observation.subject.machine = row.scenario.profile->device().name;
    judged.observation.subject.model = row.scenario.model->name;
    judged.observation.configuration = fmt::format("row {}", rows.size() + 1);
    judged.observation.log_ratio = std::log1p(*error);  // speeds are over steps
    rows.push_back(judged);
  }
  return rows;
}

// What the other rows say of the software.
uncertainty::SoftwareError without(const std::vector<JudgedRow>& rows, std::size_t held) {
  std::vector<Observation> others;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    if (at != held) others.push_back(rows[at].observation);
  }
  const uncertainty::Residuals& shipped = uncertainty::shipped_residuals(components_of);
  const uncertainty::Expected expected =
      uncertainty::ErrorModel(uncertainty::summarised(others).groups, shipped.components)
          .at(rows[held].observation.subject);
  uncertainty::SoftwareError error;
  error.mean = expected.mean;
  error.deviation = expected.deviation();
  error.has_measured_exchanges =
      cluster::measured_between_domains(*rows[held].row->scenario.cluster);
  return error;
}

}  // namespace

void report_speed_bands(const StudyResult& result, Validation& validation) {
  const std::vector<JudgedRow> rows = judged_rows(result);
  if (rows.size() < fewest) return;
  std::vector<BandPoint> points;
  for (std::size_t held = 0; held < rows.size(); ++held) {
    const Outcome& outcome = rows[held].row->outcome;
    const uncertainty::SimulatedBand band =
        uncertainty::simulated_band(outcome.draws, without(rows, held));
    points.push_back(
        {rows[held].observation.configuration,
         rows[held].observation.log_ratio,
         {std::log(band.p05_ms / outcome.step_ms), std::log(band.p95_ms / outcome.step_ms)}});
  }
  add_levels("a speed of the same software left out", points, validation);
  validation.verdicts.push_back(
      {"zeng2024-speeds",
       fmt::format("bands of simulate: {}. {} rows, all of one software and machine: too few to "
                   "judge, and another software is another question (validate steps)",
                   coverage_text(points), points.size()),
       std::nullopt});
}

}  // namespace moesim::study
