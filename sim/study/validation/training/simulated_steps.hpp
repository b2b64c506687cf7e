#pragma once

#include <string>
#include <vector>

#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/uncertainty/published/residuals.hpp"

namespace moesim::study {

// A measured step beside what `moesim simulate` says of it, nothing fitted to it.
struct SimulatedStep {
  uncertainty::Observation observation;
  std::string subject;
  std::string refusal;  // why it cannot be simulated; "": it can
  double measured_ms = 0;
  double predicted_ms = 0;
};

// The configurations of moe_training_steps.csv under `folder` that are in bf16 and divided by
// experts and data alone, which is what `simulate` knows: random logits, no capacity. Throws as
// load_training_rows() does.
std::vector<SimulatedStep> simulated_training_rows(const std::string& folder,
                                                   scenario::DocumentCache& documents,
                                                   routing::RoutingCache& cache);

// The published speeds of profiles/studies/zeng2024-speeds.json as steps of a million tokens per
// GPU, of software of which nothing is known ("zeng2024", every multiplier 1). Excluded rows are
// left out.
std::vector<SimulatedStep> simulated_speeds(scenario::DocumentCache& documents,
                                            routing::RoutingCache& cache);
// The same of the software that the shipped profile a100-sxm-80gb-deepspeed is fitted to
// (profile_software()), each row left out of the fit: half a minute.
std::vector<SimulatedStep> calibrated_speeds(scenario::DocumentCache& documents,
                                             routing::RoutingCache& cache);

}  // namespace moesim::study
