#pragma once

#include <array>

#include "sim/scenario/scenario.hpp"
#include "sim/step/program/part.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"

namespace moesim::study {

// What is known of the software and machine of a scenario, from the steps that `simulate` was held
// against (profiles/residuals/steps.json). A profile with multipliers of a software counts as that
// software: as far off as its fit to one's own steps says (`shares`: of the step in question), as
// its group of the document, or, where it has neither, by 15 % (assumed). Other profiles are of a
// software that was never calibrated.
uncertainty::SoftwareError software_error(const scenario::Scenario& scenario,
                                          const uncertainty::WorkShares& shares);

// Published pairs of steps that differ in router and capacity alone, padded to it.
struct CapacityPairs {
  int pairs = 0;
  double scatter = 0;  // of one of the two, of any software, a standard deviation of logs
};
CapacityPairs published_capacity_pairs();

// Shares of the classes of work, from the parts of a step's critical path. Exchanges of experts
// take NICs where their group leaves a domain, gradients where the job does.
uncertainty::WorkShares work_shares(const scenario::Scenario& scenario,
                                    const std::array<double, step::part_count>& parts_ms);

}  // namespace moesim::study
