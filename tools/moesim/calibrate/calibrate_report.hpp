#pragma once

#include <string>
#include <vector>

#include "tools/moesim/calibrate/calibrate_rows.hpp"

namespace moesim::tool {

bool is_step(const CalibrationRow& row);

// The rows beside their predictions, calibrated and by a fit without the row. `left_out`: logs of
// measured over predicted; empty: one row alone, which no other predicts.
std::string rows_table(const std::vector<CalibrationRow>& rows,
                       const std::vector<double>& calibrated_ms,
                       const std::vector<double>& left_out);
// The parameters in question, fitted or not.
std::string fit_table(const uncertainty::StepFit& fit,
                      const std::vector<uncertainty::Unknown>& free,
                      const uncertainty::SoftwarePrior& prior);
// "5 rows decide 1.8 of 2 parameters, published steps and assumptions the rest". `effective`: of
// the fit.
std::string decided_text(const std::vector<CalibrationRow>& rows, double effective,
                         std::size_t parameters);
// Where another host with another level fits nearly as well: both, and what would tell. "": not so.
std::string rival_text(const uncertainty::StepFit& fit);
// Errors of rows left out (none: as above), by kind.
std::string errors_text(const std::vector<CalibrationRow>& rows, const uncertainty::StepFit& fit,
                        const std::vector<double>& left_out,
                        const uncertainty::SoftwarePrior& prior);
// What the rows say of exchanges that are measured alone.
std::string nic_text(const uncertainty::StepSoftware& software);

}  // namespace moesim::tool
