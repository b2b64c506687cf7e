#pragma once

#include <string>
#include <vector>

#include "sim/study/validation/tables/validation.hpp"
#include "sim/uncertainty/published/residuals.hpp"

namespace moesim::study {

// How many of the observations lie inside the bands that are predicted for them without them: with
// each configuration, each model of a software, each machine, each software left out in turn, also
// of the fit of the error model's components. By kind of question, by machine where a band of 90 %
// is possible, and of ratios. A bar (85 to 95 % inside) where there are at least 20 points and the
// groups allow 90 %.
void report_coverage(const std::vector<uncertainty::Observation>& observations,
                     Validation& validation);

}  // namespace moesim::study
