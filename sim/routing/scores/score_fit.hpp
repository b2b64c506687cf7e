#pragma once

#include <string>

#include "sim/routing/scores/score_model.hpp"
#include "sim/routing/scores/score_moments.hpp"
#include "sim/routing/traces/trace.hpp"

namespace moesim::routing {

// The counts of a trace: as recorded, or from each token's top_k recorded choices or largest logits
// (ties: the lower expert). Throws UsageError for counts per rank, which have no information about
// experts.
CountTable count_table(const Trace& trace);

// Fits a score model by moments. A count is Binomial(S, pi) given the inclusion probability pi of
// its step and rank, so n (n - 1) / (S (S - 1)) has the mean pi^2, and a product of different
// counts has the product of their pi as its mean: counting noise cancels, even for small counts.
// With log-normal terms the logarithm of such a moment over that of another pair of steps and ranks
// is a sum of variances. Experts are weighted by the square of their popularity: experts that
// overflow matter most. Because shares sum to 1, a part of every variance is hidden; this is
// corrected.
//   drift, autocorrelation   least squares of a + v phi^h to the moments of h steps apart,
//                            h = 1 .. min(steps / 2, 20), phi from 0.3 (what forgets faster is
//                            part of `step`) to exp(-1 / steps) (what takes longer than the trace
//                            cannot be told from lasting popularity); 4 steps at least
//   step                     what same-step moments of two ranks have beyond a + v
//   rank                     what moments of one rank, steps apart, have beyond those of two
//   rank_step                what a count alone has beyond its fellows of the step
//   layer_scale              the variation of a layer's cells around its mean shares, relative to
//                            the mean over layers, shrunk to 1 by its error (empirical Bayes)
// One rank: `step` is part of rank_step. One step: rank_step is part of rank. Standard errors by a
// jackknife over groups of experts. Popularity is the mean share, shrunk in log scale so that sum
// p^2 is free of what noise, drift and ranks add to it; an expert never chosen counts half a route.
// All this is exact to first order in the variances. For higher orders, the model generates tables
// of the same size, and its figures are changed, by at most a factor of 1.3, until these tables
// give, on average, the figures of the counts (indirect inference: Gourieroux, Monfort and Renault
// 1993). Throws UsageError for a table whose sizes or sums do not agree.
ScoreModel fit_score_model(const CountTable& table, const std::string& source);

// The same from the counts of a trace and, where it has tokens, `token_type` from their pairs
// (token_type_fit.hpp).
ScoreModel fit_score_model(const Trace& trace, const std::string& source);

}  // namespace moesim::routing
