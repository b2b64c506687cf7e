#include "sim/study/validation/exchanges/exchange_errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/base/statistics.hpp"

namespace moesim::study {
namespace {

std::map<double, std::vector<double>> by_size(const Samples& samples) {
  std::map<double, std::vector<double>> grouped;
  for (const auto& [size, time] : samples) grouped[size].push_back(time);
  return grouped;
}

}  // namespace

std::optional<profile::SizeCurve> curve_through(const Samples& samples, double median_from) {
  std::vector<double> sizes;
  std::vector<double> times;
  for (const auto& [size, repeats] : by_size(samples)) {
    sizes.push_back(size);
    times.push_back(size < median_from ? *std::min_element(repeats.begin(), repeats.end())
                                       : median(repeats));
  }
  if (sizes.empty()) return std::nullopt;
  for (std::size_t knot = sizes.size() - 1; knot-- > 0;) {
    times[knot] = std::min(times[knot], times[knot + 1]);
  }
  // Rounded times may end level; the last piece has to rise, to carry the bandwidth.
  while (sizes.size() > 1 && times[sizes.size() - 2] == times.back()) {
    sizes.erase(sizes.end() - 2);
    times.pop_back();
  }
  if (sizes.size() < 2) return std::nullopt;
  return profile::SizeCurve(sizes, times);
}

Samples least_of_each(const Samples& samples) {
  Samples least;
  for (const auto& [size, repeats] : by_size(samples)) {
    least.emplace_back(size, *std::min_element(repeats.begin(), repeats.end()));
  }
  return least;
}

std::function<double(double)> alpha_beta(const Samples& samples) {
  // Rows (1, size) / t against 1: the normal equations of two unknowns.
  double ones = 0;
  double mixed = 0;
  double squares = 0;
  double right_one = 0;
  double right_size = 0;
  for (const auto& [size, time] : samples) {
    const double one = 1 / time;
    const double scaled = size / time;
    ones += one * one;
    mixed += one * scaled;
    squares += scaled * scaled;
    right_one += one;
    right_size += scaled;
  }
  const double determinant = ones * squares - mixed * mixed;
  const double alpha = (right_one * squares - right_size * mixed) / determinant;
  const double beta = (right_size * ones - right_one * mixed) / determinant;
  return [alpha, beta](double size) { return alpha + beta * size; };
}

void Errors::add(double measured_us, double predicted_us, const std::string& where) {
  const double error = predicted_us / measured_us - 1;
  errors_.push_back(error);
  if (std::abs(error) < std::abs(worst_error_) && errors_.size() > 1) return;
  worst_error_ = error;
  worst_ = fmt::format("{:+.0f} % at {}", error * 100, where);
}

void Errors::add(const Errors& other) {
  errors_.insert(errors_.end(), other.errors_.begin(), other.errors_.end());
  if (worst_.empty() || std::abs(other.worst_error_) > std::abs(worst_error_)) {
    worst_error_ = other.worst_error_;
    worst_ = other.worst_;
  }
}

double Errors::median_abs() const { return quantile_abs(0.5); }

double Errors::quantile_abs(double share) const {
  std::vector<double> absolute;
  for (const double error : errors_) absolute.push_back(std::abs(error));
  return quantile(absolute, share);
}

void Comparison::add(const Comparison& other) {
  law.add(other.law);
  equal_bytes.add(other.equal_bytes);
  alpha_beta.add(other.alpha_beta);
  nearest_row.add(other.nearest_row);
  scatter.insert(scatter.end(), other.scatter.begin(), other.scatter.end());
}

ValidationRow report_row(const Comparison& comparison, const std::string& subject) {
  const auto middle = [](const Errors& errors) {
    return errors.empty() ? std::nullopt : std::optional<double>(errors.median_abs());
  };
  MedianErrors medians;
  medians.law = comparison.law.median_abs();
  medians.p90 = comparison.law.quantile_abs(0.9);
  medians.equal_bytes = middle(comparison.equal_bytes);
  medians.alpha_beta = middle(comparison.alpha_beta);
  medians.nearest_row = middle(comparison.nearest_row);
  if (!comparison.scatter.empty()) medians.repeats = median(comparison.scatter);
  ValidationRow row;
  row.study = "exchanges";
  row.subject = subject;
  row.role = "law";
  row.note = "worst " + comparison.law.worst();
  row.medians = medians;
  return row;
}

std::string size_text(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  return fmt::format("{:.3g} {}", bytes, unit);
}

}  // namespace moesim::study
