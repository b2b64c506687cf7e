#pragma once

#include "sim/uncertainty/published/step_errors.hpp"

namespace moesim::uncertainty {

// The band of the log of (the time of `other` over that of `one`), wider by what computing may hide
// of the exchanges of shared weights: hidden_gain() of the unmeasured traits of either. One
// software runs both, so that the difference counts: the upper end lies farther out by what `one`
// gains more, the lower end by what `other` does.
void widen_by_hidden(double one, double other, Band& ratio);

}  // namespace moesim::uncertainty
