#pragma once

#include <string>

#include "sim/profile/estimate.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::tool {

// Kernels as the software of a "moesim-software" document runs them, by the names of its
// multipliers ("gemm", "exchange"). A profile of hardware leaves all as they are.

// Adds how well the multipliers are known, where moesim calibrate fitted them, to the band of an
// estimate that contains its own.
profile::Estimate with_fit_error(const profile::Profile& profile, const std::string& kernel_class,
                                 profile::Estimate estimate);
// The curve's estimate times the multiplier of its class, with that error.
profile::Estimate as_software_runs_it(const profile::Profile& profile,
                                      const std::string& kernel_class, profile::Estimate estimate);
// What provenance says of it: "; times 1.346 (gemm) by a100-sxm-80gb-deepspeed".
std::string software_provenance(const profile::Profile& profile, const std::string& kernel_class);

}  // namespace moesim::tool
