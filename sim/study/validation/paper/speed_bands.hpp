#pragma once

#include "sim/study/validation/paper/calibrate.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Adds how many rows of a study lie inside the bands that `simulate` gives steps of a profile with
// the multipliers of one's own software: each fitted row as predicted without it, and each checked
// row, with the error of the software from the other rows. Fewer than three such rows: nothing.
void report_speed_bands(const StudyResult& result, Validation& validation);

}  // namespace moesim::study
