#pragma once

#include <vector>

#include "sim/profile/software_document.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"
#include "sim/uncertainty/software/step_fit.hpp"

namespace moesim::uncertainty {

// What a document keeps of a fit of level and exchange: how well they are known. `shares`: of the
// fitted steps, on average; `left_out`: logs of measured over predicted by a fit without the row,
// empty for one row. Machine and models are left open.
profile::SoftwareFit summary_of(const StepFit& fit, const std::vector<Unknown>& free,
                                const WorkShares& shares, const std::vector<double>& left_out);

// The error of a software whose factors were fitted to measured steps, for a step that spends
// `exchange_share` of its time on exchanges. The factor on the deviation is that of Student's t
// with the fit's degrees: they are those of its scatter alone, and grow as that is less of the
// whole. `more`: a further deviation, of a model that was not measured. Name and remedy are left
// open.
SoftwareError fitted_error(const profile::SoftwareFit& fit, double exchange_share, double more);

}  // namespace moesim::uncertainty
