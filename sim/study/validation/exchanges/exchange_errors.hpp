#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/profile/size_curve.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// What a table says of one exchange: (size, microseconds), repeats included.
using Samples = std::vector<std::pair<double, double>>;

// One time per size: the least of its samples below `median_from`, their median from there on. More
// bytes never take less: where a table says so it is noise, and the larger size's time holds.
// Nothing where that leaves no rising curve.
std::optional<profile::SizeCurve> curve_through(const Samples& samples, double median_from);

// The least of the samples of each size, ascending.
Samples least_of_each(const Samples& samples);

// t = alpha + beta size, at least squares of the relative error.
std::function<double(double)> alpha_beta(const Samples& samples);

// Errors predicted / measured - 1 of one predictor.
class Errors {
 public:
  void add(double measured_us, double predicted_us, const std::string& where);
  void add(const Errors& other);
  bool empty() const { return errors_.empty(); }
  double median_abs() const;
  double quantile_abs(double share) const;
  const std::string& worst() const { return worst_; }  // "+38 % at 4 MiB"

 private:
  std::vector<double> errors_;
  double worst_error_ = 0;
  std::string worst_;
};

// The law beside the baselines on one set of points; a baseline that makes no sense is empty.
struct Comparison {
  Errors law;
  Errors equal_bytes;           // the largest count measured, at equal bytes sent by each
  Errors alpha_beta;            // a line through all that was measured, over bytes sent
  Errors nearest_row;           // the same row among the largest count measured
  std::vector<double> scatter;  // |row / its point's median - 1|: what no prediction can go below
  void add(const Comparison& other);
};

// One line of the table of errors.
ValidationRow report_row(const Comparison& comparison, const std::string& subject);

// "64 KiB", "12 tokens".
std::string size_text(double bytes);

}  // namespace moesim::study
