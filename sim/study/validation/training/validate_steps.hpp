#pragma once

#include <string>

#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Training steps of SmartMoE's logs on 16 A100 (smartmoe_gpt_step_times.csv under `folder`): the
// error and what explains it; no bar. With moe_training_steps.csv there, also the steps of other
// software that `simulate` knows. Then how many of all lie inside bands that were made without
// them. `residuals_out`, if not empty, receives the residuals by group, the published speeds
// included (profiles/residuals/steps.json).
Validation validate_steps(const std::string& folder, scenario::DocumentCache& documents,
                          routing::RoutingCache& cache, const std::string& residuals_out = "");

}  // namespace moesim::study
