#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/uncertainty/published/residuals.hpp"

namespace moesim::uncertainty {

// A trait that is left out: the observations that have more of it than those that are left reach.
struct TraitQuestion {
  std::string trait;
  double size = 1;                  // the least of it that is left out
  std::vector<std::size_t> held;    // places of the observations
  std::vector<std::size_t> others;  // those that are left
};
// All that can be asked of these observations: something is left, and to each of `held` the trait
// is one of unmeasured_traits() of `others`.
std::vector<TraitQuestion> trait_questions(const std::vector<Observation>& observations);

// How far the time of a trait's parts was off where every step with it was left out.
struct TraitError {
  std::string trait;
  double size = 1;
  int rows = 0;         // of software that others were measured with
  double share = 0;     // of the steps that its parts take, on average
  double error = 0;     // of the log of their time
  double variance = 0;  // of that error, by what else is not known of the steps
};
// One for each question with such rows. The error is that of the least squares over groups of
// steps: what is left of their log ratios beyond ErrorModel of the others, over the parts' shares,
// where a group's variance is that of its level and of its configurations' scatter.
std::vector<TraitError> trait_errors(const std::vector<Observation>& observations);

// The most likely deviation of such errors, all drawn from one normal distribution around 0, each
// known to its variance; several sizes of one trait count as one.
UnmeasuredLaw law_of(const std::vector<TraitError>& errors);

// The law of parts that no step was ever held against. Those that law_of() left out were in sight
// when their prices were made; without that they are off by twice as much: assumed (README.md).
UnmeasuredLaw never_in_sight(const UnmeasuredLaw& law);

}  // namespace moesim::uncertainty
