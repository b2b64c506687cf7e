#pragma once

#include <vector>

#include "sim/uncertainty/software/software_prior.hpp"
#include "tools/moesim/calibrate/calibrate_rows.hpp"

namespace moesim::tool {

// Warnings about rows, on stderr. Each prints nothing where it has no reason. `left_out`: as of
// rows_table().

// Warns where steps in bf16 and in lower precision are off by different factors: they have no level
// in common.
void note_precisions(const std::vector<CalibrationRow>& rows);

// The same of steps on different clusters.
void note_clusters(const std::vector<CalibrationRow>& rows);

// Warns where layers or exchanges are off by quite other factors than steps: more likely than not
// they hold something else than was predicted.
void note_kinds(const std::vector<CalibrationRow>& rows);

// Warns where all rows repeat one configuration: they do not tell how far others scatter.
void warn_of_one_configuration(const std::vector<CalibrationRow>& rows);

// Warns of rows that are far from what all others say of them, by a factor of two, and of the
// farthest by 1.25 (three times the usual error at least): mostly a wrong unit or option.
void warn_of_odd_rows(const std::vector<CalibrationRow>& rows, const std::vector<double>& left_out);

// Warns where rows say nothing of one another, and where they are steps of something else. The
// latter are told by what they take beside their prediction, whichever parameter the fit finds for
// it.
void warn_of_fit(const std::vector<CalibrationRow>& rows, const uncertainty::SoftwarePrior& prior,
                 const std::vector<double>& left_out);

}  // namespace moesim::tool
