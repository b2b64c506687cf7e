#pragma once

#include <array>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/training/training_step.hpp"
#include "sim/uncertainty/step_errors.hpp"

namespace moesim::uncertainty {

// What of a software is fitted to measured steps. The first three are logs of factors: on the whole
// step, and beyond that on its exchanges and on waiting for the host; the last is in milliseconds.
enum class Unknown { level, exchange, host, fixed_ms };
inline constexpr EnumNames<Unknown, 4> unknown_names{{
    {Unknown::level, "level", "factor on all of the step"},
    {Unknown::exchange, "exchange", "factor on exchanges, beyond that"},
    {Unknown::host, "host", "factor on waiting for the host, beyond that"},
    {Unknown::fixed_ms, "fixed-ms", "milliseconds added to each step"},
}};
constexpr std::size_t unknown_count = unknown_names.size();
using Unknowns = std::array<double, unknown_count>;

// A predicted step by what the unknowns act on, in milliseconds.
struct StepClasses {
  double compute = 0;  // and bubbles, which follow it
  double exchange = 0;
  double host = 0;

  double total() const { return compute + exchange + host; }
};
StepClasses classes_of(const training::TrainingStep& step);

// The step with these unknowns, and the derivatives of its log.
double scaled_ms(const StepClasses& classes, const Unknowns& unknowns);
Unknowns log_slopes(const StepClasses& classes, const Unknowns& unknowns);

// How much longer steps of one's own software on one's own machine take than predicted: fitted by
// `moesim calibrate`.
struct StepSoftware {
  std::string name;
  std::string source;
  std::string machine;              // of the profile's device
  std::string software;             // whose published steps were the prior; "": all
  std::vector<std::string> models;  // that were measured
  std::vector<std::string> precisions;
  int rows = 0;
  Unknowns unknowns{};
  std::array<Unknowns, unknown_count> covariance{};
  double scatter = 0;       // standard deviation of the log of one configuration
  double degrees = 1;       // of freedom of the scatter
  double median_error = 0;  // |predicted / measured - 1|, each row left out
  double worst_error = 0;

  // Throws UsageError naming file and key.
  static StepSoftware load(const std::string& path);
  std::string text() const;  // of the document, JSON

  // The predicted step as this software runs it: step time, parts, speeds.
  training::TrainingStep applied(const training::TrainingStep& step) const;
  // Of measured steps over applied(); `new_model` and `new_precision` are deviations that count
  // where the subject's was not measured. Student's t with the degrees of the scatter.
  Band band(const StepClasses& classes, const Subject& subject, const std::string& precision,
            double new_model, double new_precision) const;
};

}  // namespace moesim::uncertainty
