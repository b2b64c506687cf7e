#pragma once

#include <string>

#include "sim/uncertainty/published/residuals.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::uncertainty {

// One of two steps that one's own software runs on one cluster.
struct OwnStep {
  std::string model;      // of its Subject
  std::string precision;  // as StepSoftware::precisions
  // The classes of what StepSoftware::applied() made of it: the fixed cost is in the host's.
  StepClasses applied;
};

// log_slopes() of a step, from what the software makes of it.
Unknowns applied_slopes(const StepClasses& applied, double fixed_ms);

// The band of log(measured / predicted ratio) of two steps, around 0. What the fit leaves open
// counts as far as it moves them apart, and the scatter of two configurations:
//
//   (s1 - s2)' covariance (s1 - s2) + 2 scatter^2
//
// with the slopes s of either, and Student's t with the degrees of the scatter, as in
// StepSoftware::band(). Models and precisions that were not measured count (`components`) where
// the two have not the same. Never wider than the root of squares of the two steps' bands.
// `software`: as on() the cluster.
Band own_ratio_band(const StepSoftware& software, const OwnStep& one, const OwnStep& other,
                    const Components& components);

}  // namespace moesim::uncertainty
