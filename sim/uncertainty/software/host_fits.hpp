#pragma once

#include <vector>

#include "sim/uncertainty/software/step_fit.hpp"

namespace moesim::uncertainty {

// Whether the rows are priced with hosts of any speed, of which one is to be found.
bool prices_host(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free);

// The fit that is taken, and the one with the host at its prior's mean, or elsewhere, that is not.
struct HostFits {
  StepFit taken;
  StepFit other;
  std::vector<Unknown> free;  // in the one that is taken
};

// Precondition: prices_host().
HostFits host_fits(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                   const SoftwarePrior& prior);

// The fit that is taken, whether hosts are priced or not.
StepFit likeliest_fit(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                      const SoftwarePrior& prior);

// The covariance of the variables of the fit that is taken, over all hosts. Where rows tell the
// host and the level badly apart, how likely hosts are has several maxima and flat parts, of which
// the slopes at one fit say nothing. So this is the mean square away from that fit, with the
// variance of the others at each host (law of total variance).
Covariance over_hosts(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                      const SoftwarePrior& prior, const HostFits& fits);

}  // namespace moesim::uncertainty
