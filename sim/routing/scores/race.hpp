#pragma once

#include <span>
#include <vector>

namespace moesim::routing {

// Choosing the k largest of log(w_e) + Gumbel noise is a race: expert e arrives at an exponential
// time of rate w_e, and the first k are taken (Plackett 1975, Luce 1959). The inclusion probability
// of an expert is the probability of being among them; the sum over all experts is k.

// Inclusion probabilities of a race with these log-weights; exact except for the quadrature error,
// below 1e-6. 1 <= k <= the number of experts, of which at least k are finite.
std::vector<double> race_inclusions(std::span<const double> log_weights, int k);

// The log-weights, the largest 0, of a race whose inclusion probabilities are k times `shares`,
// limited to 1: the excess is distributed proportionally to the others. Shares are positive and
// need not sum to 1. k = 1 is exact; else within 1e-4 of the inclusion probability.
std::vector<double> race_log_weights(std::span<const double> shares, int k);

// k times `shares`, normalised, with that cap.
std::vector<double> capped_inclusions(std::span<const double> shares, int k);

// A race whose weights are changed slightly.
struct Race {
  int top_k = 1;
  std::vector<double> log_weights;  // largest 0
  std::vector<double> inclusions;
  // d log-weight / d log-inclusion of an expert while all inclusions sum to k: 1 for k = 1, more
  // for an expert that is chosen often. Assumes that the influence of one expert on another is the
  // product of one factor per expert, which is exact for k = 1.
  std::vector<double> slopes;

  // `shares` as for race_log_weights().
  Race(const std::vector<double>& shares, int k);
  // The log-weights for the given inclusions, which have to be close to those of the race.
  std::vector<double> moved_to(std::span<const double> inclusions) const;
};

// Tokens of several equally likely types: type m adds terms[m][e] to the log-weights of a race
// shared by all types.
class MixedRace {
 public:
  using Types = std::vector<std::vector<double>>;  // [type, expert]

  // The race whose inclusion probabilities, averaged over the types, are given by `shares` (as for
  // race_log_weights()), each within 0.1 % and 2e-5. k is below the number of experts.
  MixedRace(const std::vector<double>& shares, int k, Types terms);

  // [type, expert] The log-weights of each type.
  Types log_weights() const { return with_terms(shared_); }
  // The log-weights for other mean inclusion probabilities, each within 0.5 % and 2e-5; faster for
  // closer ones.
  Types moved_to(std::span<const double> inclusions) const;

 private:
  Types with_terms(const std::vector<double>& shared) const;
  Types inclusions_of(const std::vector<double>& shared) const;
  // Changes `shared` until the mean is `wanted`; `reached` is the initial mean.
  void search(std::span<const double> wanted, double part, Types reached,
              std::vector<double>& shared) const;

  int top_k_;
  Types terms_;
  std::vector<double> shared_;  // [expert]
  Types reached_;
};

}  // namespace moesim::routing
