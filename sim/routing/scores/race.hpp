#pragma once

#include <span>
#include <vector>

namespace moesim::routing {

// Choosing the k largest of log(w_e) + Gumbel noise is a race: expert e arrives at an exponential
// time of rate w_e, and the first k are taken (Plackett 1975, Luce 1959). The inclusion probability
// of an expert is that of being among them; over all experts it sums to k.

// Inclusion probabilities of a race with these log-weights; exact but for the quadrature, better
// than 1e-6. 1 <= k <= the number of experts, of which at least k are finite.
std::vector<double> race_inclusions(std::span<const double> log_weights, int k);

// The log-weights, largest 0, of a race whose inclusion probabilities are k times `shares`, where
// that is below 1: what goes beyond is dealt to the others in proportion. Shares are positive and
// need not sum to 1. k = 1 is exact; else within 1e-4 of the inclusion probability.
std::vector<double> race_log_weights(std::span<const double> shares, int k);

// k times `shares`, normalised, with that cap.
std::vector<double> capped_inclusions(std::span<const double> shares, int k);

// A race around which weights are moved a little.
struct Race {
  int top_k = 1;
  std::vector<double> log_weights;  // largest 0
  std::vector<double> inclusions;
  // d log-weight / d log-inclusion of an expert while all inclusions sum to k: 1 for k = 1, more
  // for an expert that is often chosen. As if the influence of one expert on another were the
  // product of a figure of each, which is exact for k = 1.
  std::vector<double> slopes;

  // `shares` as for race_log_weights().
  Race(const std::vector<double>& shares, int k);
  // The log-weights at which the inclusions are those given, near to the race's own.
  std::vector<double> moved_to(std::span<const double> inclusions) const;
};

// Tokens of several types, each as likely: type m adds terms[m][e] to the log-weights of a race
// that all share.
class MixedRace {
 public:
  using Types = std::vector<std::vector<double>>;  // [type, expert]

  // The race whose inclusion probabilities, averaged over the types, are those that `shares` ask
  // for (as for race_log_weights()), each to 0.1 % and 2e-5. k is below the number of experts.
  MixedRace(const std::vector<double>& shares, int k, Types terms);

  // [type, expert] The log-weights of each type.
  Types log_weights() const { return with_terms(shared_); }
  // Those at which the mean inclusion probabilities are others, each to 0.5 % and 2e-5; the nearer
  // they are the quicker.
  Types moved_to(std::span<const double> inclusions) const;

 private:
  Types with_terms(const std::vector<double>& shared) const;
  Types inclusions_of(const std::vector<double>& shared) const;
  // Moves `shared` until the mean is `wanted`; `reached` is what it starts from.
  void search(std::span<const double> wanted, double part, Types reached,
              std::vector<double>& shared) const;

  int top_k_;
  Types terms_;
  std::vector<double> shared_;  // [expert]
  Types reached_;
};

}  // namespace moesim::routing
