#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/profile/estimate.hpp"

namespace moesim::step {

// The errors of the profile's curves in each simulated replica: one per label, because kernels with
// the same label share their error. Latin hypercube sampling of a standard normal over the
// replicas, so that the median over replicas is close to the curves' own prediction, with common
// random numbers across the scenarios of a seed; one replica alone has no error.
class CurveErrors {
 public:
  static constexpr int none = -1;  // every curve at its median

  CurveErrors(std::uint64_t seed, int replicas) : seed_(seed), replicas_(replicas) {}

  int number_of(const std::string& label);
  // Standard deviations.
  double of(int label, int replica) const {
    if (replica == none) return 0;
    return errors_[static_cast<std::size_t>(label)][static_cast<std::size_t>(replica)];
  }

 private:
  std::vector<double> draw(const std::string& label) const;

  std::uint64_t seed_;
  int replicas_;
  std::map<std::string, int> numbers_;
  std::vector<std::vector<double>> errors_;  // [label][replica]
};

// The estimate shifted by `error` standard deviations: log-normal on each side of the median, with
// the width of its 5 % quantile below and of its 95 % quantile above.
double with_error(const profile::Estimate& estimate, double error);
// The log of the factor by which that shifts it.
double log_of_error(const profile::Estimate& estimate, double error);

}  // namespace moesim::step
