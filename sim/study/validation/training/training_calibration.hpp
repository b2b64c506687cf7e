#pragma once

#include <vector>

#include "sim/study/validation/tables/validation.hpp"
#include "sim/uncertainty/published/residuals.hpp"
#include "sim/uncertainty/software/step_fit.hpp"

namespace moesim::study {

// What `moesim calibrate` makes of three and of six public steps of a machine, software and
// precision (bf16 or FP8): how far off the steps of other configurations then are, and how many lie
// inside their bands. The steps to calibrate with are drawn 40 times; the prior knows other
// software alone. `steps` belong to the observations.
void report_calibration(const std::vector<uncertainty::Observation>& observations,
                        const std::vector<uncertainty::MeasuredRow>& steps, Validation& validation);

}  // namespace moesim::study
