#pragma once

#include <vector>

#include "sim/uncertainty/step_errors.hpp"

namespace moesim::uncertainty {

// What the exchanges of two training steps of one cluster take.
struct StepExchanges {
  bool cross_domains = false;  // NICs carry them
  bool are_measured = false;   // between the domains of that very cluster
};

// Of log(measured / predicted ratio) of two training steps that differ in router and capacity
// alone, with blocks padded to it: the levels of usual_levels(). `one`, `other`: part_times().
// `scatter`: of one such configuration, a standard deviation of logs. As ratio_band() of simulated
// steps: the difference of the shares of each class of work, the noise of two runs, two
// configurations' scatter. There replicas draw the errors of curves; here each part whose sizes
// follow the capacity has that of a curve at one size.
std::vector<BandLevel> capacity_ratio_levels(const std::vector<double>& one,
                                             const std::vector<double>& other, double scatter,
                                             const StepExchanges& exchanges);

}  // namespace moesim::uncertainty
