#pragma once

#include <string>

#include "sim/routing/scores/score_model.hpp"
#include "sim/routing/scores/score_moments.hpp"
#include "sim/routing/traces/trace.hpp"

namespace moesim::routing {

// What a trace counts: as recorded, or of each token's top_k recorded choices or largest logits
// (equal ones go to the lower expert). Throws UsageError for counts per rank, which say nothing of
// experts.
CountTable count_table(const Trace& trace);

// Fits a score model by moments. A count is Binomial(S, pi) given the inclusion probability pi of
// its step and rank, so n (n - 1) / (S (S - 1)) has the mean pi^2, and products of different counts
// that of their product: counting noise drops out, however small the counts. With log-normal terms
// the logarithm of such a moment over that of another pair of steps and ranks is a sum of
// variances. Experts weigh as the square of their popularity: those that overflow count. That
// shares sum to 1 hides a part of every variance, which is given back.
//   drift, autocorrelation   least squares of a + v phi^h to the moments of h steps apart,
//                            h = 1 .. min(steps / 2, 20), phi from 0.3 (what forgets faster is
//                            part of `step`) to exp(-1 / steps) (what takes longer than the trace
//                            cannot be told from lasting popularity); 4 steps at least
//   step                     what same-step moments of two ranks have beyond a + v
//   rank                     what moments of one rank, steps apart, have beyond those of two
//   rank_step                what a count alone has beyond its fellows of the step
// One rank: `step` is part of rank_step. One step: rank_step is part of rank. Standard errors by a
// jackknife over groups of experts. Popularity is the mean share, shrunk in log scale so that sum
// p^2 is free of what noise, drift and ranks add to it; an expert never chosen counts half a route.
// All that is exact to the first order in the variances. For the rest, the model is made to
// generate tables of the same size, and its figures are moved, by 1.3 times at most, until these
// give back, on average, what the counts gave (indirect inference: Gourieroux, Monfort and Renault
// 1993).
// Throws UsageError for a table whose sizes or sums do not agree.
ScoreModel fit_score_model(const CountTable& table, const std::string& source);

// The same of what a trace counts and, where it holds tokens, `token_type` of their pairs
// (token_type_fit.hpp).
ScoreModel fit_score_model(const Trace& trace, const std::string& source);

}  // namespace moesim::routing
