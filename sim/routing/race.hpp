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

// How far the log-weight of an expert moves when its inclusion probability goes from `from` to
// `to`, while those of the others hardly change: exact for k = 1, else as if its rivals arrived at
// a fixed rate.
double race_shift(double from, double to, int k);

}  // namespace moesim::routing
