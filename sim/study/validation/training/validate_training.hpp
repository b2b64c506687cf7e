#pragma once

#include <string>

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Measured training configurations (moe_training_steps.csv under `folder`) beside what
// sim/training predicts: the bias by system, the error with one factor per system and software and
// each model left out, the order of pairs, SimuMax's own predictions; and how many rows lie inside
// bands that were made without them. `residuals_out`, if not empty, receives the residuals of all
// rows by group (profiles/residuals/training.json).
Validation validate_training(const std::string& folder, const std::string& residuals_out = "");

}  // namespace moesim::study
