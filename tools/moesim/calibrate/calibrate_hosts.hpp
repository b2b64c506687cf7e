#pragma once

#include <vector>

#include "sim/uncertainty/software/step_fit.hpp"
#include "tools/moesim/calibrate/calibrate_rows.hpp"

namespace moesim::tool {

// Prices each row that hangs on the host with its times multiplied by a quarter to four: its curve.
void price_hosts(std::vector<CalibrationRow>& rows);

// What is measured of the rows.
std::vector<uncertainty::MeasuredRow> steps_of(const std::vector<CalibrationRow>& rows);

// uncertainty::fit_steps() of rows after price_hosts(). Where the host is free they are priced
// again with the fitted factor, and the fit repeated, until both belong together: the wait for the
// host begins at some factor, which the curve between others does not tell. Up to 9 prices of each
// row, as 7 before; routing is not drawn again.
uncertainty::StepFit fit_with_hosts(std::vector<CalibrationRow>& rows,
                                    const std::vector<uncertainty::Unknown>& free,
                                    const uncertainty::SoftwarePrior& prior);

}  // namespace moesim::tool
