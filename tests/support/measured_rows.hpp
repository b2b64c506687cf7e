#pragma once

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/uncertainty/software/step_fit.hpp"

namespace moesim::uncertainty {

// The unknowns that steps by themselves tell.
inline constexpr std::array of_steps = {Unknown::level, Unknown::exchange, Unknown::host,
                                        Unknown::fixed_ms};
inline const std::vector<Unknown> all_of_steps(of_steps.begin(), of_steps.end());

inline SoftwarePrior prior() {
  SoftwarePrior made;
  made.mean = {0.3, 0, 0, 0};
  made.deviation = {0.3, 0.25, 0.42, 20};
  made.scatter = {0.1, 0.08, 0.08};
  return made;
}

// Steps of 0.2 to 20 s that spend different shares of their time on exchanges and on the host.
inline StepClasses drawn_classes(Stream& stream) {
  const double total = 200 * std::exp(std::log(100) * stream.uniform());
  const double exchange = 0.5 * stream.uniform();
  const double host = 0.4 * stream.uniform();
  return {total * (1 - exchange - host), total * exchange, total * host};
}

inline std::vector<MeasuredRow> measured(Stream& stream, const Unknowns& truth, int rows,
                                         double scatter) {
  std::vector<MeasuredRow> steps;
  for (int row = 0; row < rows; ++row) {
    const StepClasses classes = drawn_classes(stream);
    steps.push_back({classes, scaled_ms(classes, truth) * std::exp(scatter * stream.normal())});
  }
  return steps;
}

inline StepSoftware known_software(const StepFit& fit) {
  StepSoftware software = software_of(fit);
  software.models = {"model"};
  software.precisions = {"bf16"};
  return software;
}

}  // namespace moesim::uncertainty
