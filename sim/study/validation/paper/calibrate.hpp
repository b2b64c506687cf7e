#pragma once

#include <optional>
#include <vector>

#include "sim/study/sweep/outcome.hpp"
#include "sim/study/validation/paper/published_study.hpp"

namespace moesim::study {

// One row of a study, predicted.
struct StudyRow {
  PublishedRow published;
  scenario::Scenario scenario;
  double uncalibrated_tokens_per_s = 0;  // every multiplier 1
  Outcome outcome;                       // calibrated, as a sweep of the scenario predicts it
  std::optional<double> error;           // predicted speed / published speed - 1
  std::optional<double> left_out_error;  // of a fit without this row
};

struct ErrorSummary {
  std::size_t rows = 0;
  double mean = 0;  // of absolute relative errors, 0..1
  double worst = 0;
};

struct StudyResult {
  std::vector<double> multipliers;  // as study.unknowns
  std::vector<StudyRow> rows;
  ErrorSummary in_sample;
  ErrorSummary leave_one_out;
  ErrorSummary unfitted;
  ErrorSummary excluded;
};

// The routing that a study's rows ask for, so that a caller may do it beforehand on many threads.
struct StudyRouting {
  std::vector<routing::RoutingJob> jobs;
  int replicas = 1;
};
StudyRouting routing_of(const PublishedStudy& study, scenario::DocumentCache& documents);

// Every row predicted with multipliers 1, which is its outcome, too; no errors.
std::vector<StudyRow> uncalibrated(const PublishedStudy& study, scenario::DocumentCache& documents,
                                   routing::RoutingCache& cache);

// Fits the study's multipliers to its `fit` rows by least squares of relative step times
// (Gauss-Newton on the simulator itself), predicts every row, and leaves each fitted row out once.
StudyResult calibrate(const PublishedStudy& study, scenario::DocumentCache& documents,
                      routing::RoutingCache& cache);

}  // namespace moesim::study
