#pragma once

#include <array>
#include <vector>

#include "sim/uncertainty/software/step_fit.hpp"
#include "sim/uncertainty/statistics/symmetric_matrix.hpp"

namespace moesim::uncertainty {

// The steps of fit_steps(): penalised least squares from given starts. `free` are unknowns whose
// prior's deviation is above 0; variables are those of by_variables().

// Fits that are less than e^2 times apart in how likely they are fit alike: by two deviations.
inline constexpr double fit_alike = 2;
// The logs of two factors that are no more than this apart are one fit.
inline constexpr double factors_apart = 0.2;

// Least squares around one point: the matrix of second derivatives, over `free` (row-major), and
// the slope downwards, in units of the prior's deviations.
struct Normal {
  Vector matrix;
  Vector right;
};

Normal normal_equations(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                        const SoftwarePrior& prior, const StepFit& fit);

// Variances of the prior where nothing was free, the inverse of `matrix` elsewhere.
Covariance covariance_of(const Normal& normal, const std::vector<Unknown>& free,
                         const SoftwarePrior& prior);

// The prior with a level that may be anything: its logs are known to one, a factor of e (assumed).
SoftwarePrior with_open_level(SoftwarePrior prior);

// The negative logarithm of how likely the rows are with this fit, up to a constant; of their
// scatter it takes the expectation over what the unknowns leave open.
double cost_of(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
               const SoftwarePrior& prior, const StepFit& fit);

// Whether a row has a curve of the host.
bool has_curves(const std::vector<MeasuredRow>& rows);
bool holds(const std::vector<Unknown>& unknowns, Unknown unknown);

// The likeliest of the fits that begin where the host is one of these (logs, from the prior's
// mean), at the prior's mean of the other unknowns, at the mean of the rows, and there with faster
// and slower exchanges. Where the level is free the scatter is that around the fit
// with_open_level(): what all rows have in common says nothing of how far they are apart. With the
// level's own prior, a level that is far off would be taken for scatter.
StepFit likeliest_from(const std::vector<double>& hosts, const std::vector<MeasuredRow>& rows,
                       const std::vector<Unknown>& free, const SoftwarePrior& prior);

}  // namespace moesim::uncertainty
