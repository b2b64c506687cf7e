#pragma once

#include <string>
#include <vector>

#include "sim/uncertainty/software/software_prior.hpp"
#include "tools/moesim/calibrate/calibrate_rows.hpp"

namespace moesim::tool {

// The software whose published steps are known before any row: --software, else the one that the
// column software of the rows names; "": neither. Throws UsageError for rows of two, and for one
// without published steps.
std::string requested_software(const CommandLine& line, const std::vector<CalibrationRow>& rows);

// What is known of the parameters before the rows. Rows of several models have one software all the
// same: their priors are mixed. Exchanges alone say nothing of a model. `steps`: steps_of(rows).
uncertainty::SoftwarePrior prior_for(const std::vector<CalibrationRow>& rows,
                                     const std::vector<uncertainty::MeasuredRow>& steps,
                                     const std::string& software);

// The parameters to fit: those of --fit, else as many as the rows can carry. Throws UsageError for
// more parameters than rows, and for one that no row says anything about.
std::vector<uncertainty::Unknown> requested_unknowns(
    const CommandLine& line, const std::vector<CalibrationRow>& rows,
    const std::vector<uncertainty::MeasuredRow>& steps, const uncertainty::SoftwarePrior& prior);

// Lets a fixed cost that --fit asks for be a fifth of the shortest step, where the prior allows
// less.
void widen_fixed_cost(const std::vector<uncertainty::Unknown>& free,
                      const std::vector<uncertainty::MeasuredRow>& steps,
                      uncertainty::SoftwarePrior& prior);

}  // namespace moesim::tool
