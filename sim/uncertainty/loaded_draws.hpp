#pragma once

#include <vector>

#include "sim/uncertainty/simulated_band.hpp"

namespace moesim::uncertainty {

// A draw of a step as a part of a mixture.
struct WeighedDraw {
  StepDraw draw;
  double variance = 0;  // of the log of its step, beyond the terms that all draws have
};

// The distribution that draws are of, closer than the few draws themselves show it:
// - What does not follow routing has the errors of curves alone. Each part's spread over the draws
//   is that of stratified errors, so nearly exact; how parts happen to be paired in few draws is
//   not. The parts count with their means, and their variances are added.
// - Of what follows routing, the errors of curves are regressed out, and count with the variance
//   that their slopes give. If a line through the rest over the loads explains at least a third of
//   its variance, it counts at the loads of all draws, simulated and further ones, with what the
//   line leaves as a variance (double sampling for regression: Cochran 1977, Sampling Techniques,
//   section 12.6); else the rest is that of the draws.
// A draw has the shares of the simulated one whose load is nearest, or its own. The draws
// themselves where there are fewer than 8, fewer than twice the unknowns, or no parts.
std::vector<WeighedDraw> weighed_draws(const std::vector<StepDraw>& draws, const DrawnParts& parts);

}  // namespace moesim::uncertainty
