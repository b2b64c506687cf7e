#pragma once

#include <vector>

#include "sim/profile/dispatcher.hpp"
#include "sim/study/validation/exchanges/dispatch_samples.hpp"

namespace moesim::study {

// The figures of one stage that fit samples best: least squares of log times, with errors beyond
// 10 % counted by their size rather than its square, by Levenberg and Marquardt's method. Figures
// that `like` has as 0 stay 0, the others start from round numbers, so that nothing of `like` but
// its form enters. NVLink's efficiency is taken as `like` has it unless `fits_link`; the NIC's is
// `nic_efficiency`. The band's factor becomes the 5 % and 95 % quantiles of measured over fitted.
// Precondition: at least as many samples as figures.
profile::StageCost fit_stage(const profile::StageCost& like,
                             const std::vector<const DispatchSample*>& samples,
                             double nic_efficiency, bool fits_link);

// Microseconds of a sample by these figures.
double fitted_us(const profile::StageCost& cost, const DispatchSample& sample,
                 double nic_efficiency);

}  // namespace moesim::study
