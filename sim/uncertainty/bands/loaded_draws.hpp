#pragma once

#include <vector>

#include "sim/uncertainty/bands/simulated_band.hpp"

namespace moesim::uncertainty {

// A draw of a step as a part of a mixture.
struct WeighedDraw {
  StepDraw draw;
  double variance = 0;  // of the log of its step, beyond the terms that all draws have
};

// Whether the distribution can be told more closely than the draws show it: there are at least 8,
// and they are averaged.
bool knows_spread(const std::vector<StepDraw>& draws, const AveragedDraws& averaged);

// Values of draws at all loads.
struct ValuesAtLoads {
  std::vector<double> values;     // [load]; empty if no line over the loads explains the draws
  std::vector<std::size_t> like;  // [load] the draw whose load is nearest
  double variance = 0;            // around the line
};

// Values by a line through `values`, one per draw, over the loads of `averaged`, if that explains
// at least a third of their variance and there are at least 8 draws.
ValuesAtLoads values_at_loads(const std::vector<double>& values, const AveragedDraws& averaged);

// The distribution that draws are of:
// - The errors of curves count with their means and variances, not as they happen to be drawn.
// - If values_at_loads() explains the steps they count at all loads, with what the line leaves as a
//   variance (regression estimator with a known mean: Cochran 1977, Sampling Techniques, section
//   7.1); else they are those of the draws.
// A draw has the shares of the simulated one whose load is nearest, or its own. The draws
// themselves where knows_spread() says no.
std::vector<WeighedDraw> weighed_draws(const std::vector<StepDraw>& draws,
                                       const AveragedDraws& averaged);

}  // namespace moesim::uncertainty
