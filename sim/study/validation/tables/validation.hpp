#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

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

// How bands at one nominal level hold points that they were predicted without.
struct CalibrationPoint {
  std::string question;  // what was left out
  double nominal = 0;    // 0..1
  std::size_t points = 0;
  double observed = 0;  // share inside, 0..1
  double width = 0;     // mean, of logs
  double interval_score = 0;
  double constant_score = 0;          // of the best band of constant width around the predictions
  double constant_width = 0;          // of that band, of logs
  std::optional<std::size_t> groups;  // that were left out, where they were counted
};

struct Validation {
  std::string title;
  std::string source;
  std::vector<ValidationRow> rows;
  std::vector<Verdict> verdicts;
  std::vector<CalibrationPoint> calibration = {};
  bool passed() const;  // no verdict that counts is unmet
};

}  // namespace moesim::study
