#pragma once

#include <vector>

#include "sim/study/validation/tables/validation.hpp"
#include "sim/uncertainty/published/residuals.hpp"

namespace moesim::study {

// Adds how many observations lie inside the bands that `simulate` gives them (without the classes
// of work, which are small beside it), with an error model that is fitted without them: with their
// software left out, and with their machine; and the ratios of two of one software, machine and
// model, as a baseline of a sweep gives them. Levels 10 to 90 %.
void report_step_coverage(const std::vector<uncertainty::Observation>& observations,
                          Validation& validation);

}  // namespace moesim::study
