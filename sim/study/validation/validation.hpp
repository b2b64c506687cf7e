#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/study/validation/calibrate.hpp"

namespace moesim::study {

// Medians of |predicted / measured - 1| over a set of points: of what is validated, and of what
// anyone could have said without it.
struct MedianErrors {
  double law = 0;
  std::optional<double> equal_bytes, alpha_beta, nearest_row;
  std::optional<double> repeats;  // |row / its point's median - 1|: nothing can be better
  double p90 = 0;                 // of the law, not its median
};

// One prediction held against a measurement, or a part of one.
struct ValidationRow {
  std::string study;
  std::string subject;  // "top2+ir, CF 1.5, prefill" or "expert FFN"
  std::string role;     // fit, check, excluded, predict, part
  std::string unit;     // "tokens/s/GPU", "ms", "us"
  std::optional<double> measured;
  double predicted = 0;                  // 0 where `medians` stand for many predictions
  std::optional<double> error;           // predicted / measured - 1
  std::optional<double> left_out_error;  // of a fit without this row
  std::string note;
  std::optional<MedianErrors> medians = std::nullopt;
};

// Whether a bar was met, or a claim of a paper holds, in words.
struct Verdict {
  std::string study;
  std::string text;
  std::optional<bool> met;  // nothing: reported only
};

// Of bands at one nominal level, of points that they were predicted without.
struct CalibrationPoint {
  std::string question;  // what was left out
  double nominal = 0;    // 0..1
  std::size_t points = 0;
  double observed = 0;  // share inside, 0..1
  double width = 0;     // mean, of logs
  double interval_score = 0;
  double constant_score = 0;  // of the best band of constant width around the predictions
};

struct Validation {
  std::string title;
  std::string source;
  std::vector<ValidationRow> rows;
  std::vector<Verdict> verdicts;
  std::vector<CalibrationPoint> calibration = {};
  bool passed() const;  // no verdict that counts is unmet
};

// The published speeds of the paper, its claims by name, and what einsum dispatch has to do with
// them (profiles/studies/zeng2024-speeds.json).
Validation validate_speeds(scenario::DocumentCache& documents, routing::RoutingCache& cache);
// Its routing, which is most of the work: a caller may have it done on many threads beforehand.
StudyRouting speeds_routing(scenario::DocumentCache& documents);

// One published MoE layer, composed stage by stage (profiles/layers): no fitted constant.
Validation validate_layer(scenario::DocumentCache& documents);

// Layers that bench_layer_gpu measured (profiles/schema/measured-layer.schema.json), against what
// `profile`, measured on the same machine, makes of them: the median error at most 3 %, the worst 8
// %. Void and synthetic measurements are listed and do not count. Throws UsageError for a document
// of another device, or without a measurement that counts.
Validation validate_measured_layers(const std::string& measured, const std::string& profile,
                                    scenario::DocumentCache& documents);

// Training steps of SmartMoE's logs on 16 A100 (smartmoe_gpt_step_times.csv under `folder`): the
// error and what explains it; no bar. With moe_training_steps.csv there, also the steps of other
// software that `simulate` knows. Then how many of all lie inside bands that were made without
// them. `residuals_out`, if not empty, receives the residuals by group, the published speeds
// included (profiles/residuals/steps.json).
Validation validate_steps(const std::string& folder, scenario::DocumentCache& documents,
                          routing::RoutingCache& cache, const std::string& residuals_out = "");

// Exchanges among more GPUs or nodes than were measured, by the laws of sim/profile, against public
// tables under `folder` (nccl_intranode.csv and, where they are there, deepep_normal.csv,
// deepep_lowlatency.csv, trtllm_moe_alltoall_gb200.csv and internode_alltoall.csv; plain or
// .csv.gz), beside plain baselines and the scatter of repeated rows.
Validation validate_exchanges(const std::string& folder);

// Measured training configurations (moe_training_steps.csv under `folder`) beside what
// sim/training predicts: the bias by system, the error with one factor per system and software and
// each model left out, the order of pairs, SimuMax's own predictions; and how many rows lie inside
// bands that were made without them. `residuals_out`, if not empty, receives the residuals of all
// rows by group (profiles/residuals/training.json).
Validation validate_training(const std::string& folder, const std::string& residuals_out = "");

}  // namespace moesim::study
