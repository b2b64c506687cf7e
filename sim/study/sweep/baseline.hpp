#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/study/sweep/outcome.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace moesim::study {

// The point that each point of a sweep is compared with: that of the grid which has the options of
// `text` ("router=top1,capacity-factor=1") and all others as the point itself. Repeats are replaced
// by what they repeat. Throws UsageError for what is not option=value, an option of no scenario, a
// value that the grid does not have.
std::vector<std::optional<std::size_t>> baselines(const std::vector<SweepPoint>& points,
                                                  const std::string& text);

// How many times as fast `outcome` is as `baseline`: what both share cancels. Of two profiles or
// clusters only the draws do. Steps that differ in router and capacity alone, padded to it, have
// the scatter of such published pairs, others that of pairs that differ in more.
SpeedRatio speed_ratio(const scenario::Scenario& scenario, const Outcome& outcome,
                       const scenario::Scenario& baseline_scenario, const Outcome& baseline);

}  // namespace moesim::study
