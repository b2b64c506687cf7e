#pragma once

#include <span>
#include <vector>

namespace moesim::routing {

enum class Noise { normal, gumbel };  // standard, independent for every token and expert

// P(choice c of a token is expert e), [choice, expert], for logits of offset[e] plus noise: the
// probability that exactly c of the other experts score above e, integrated over e's own score.
// Each row sums to 1. No sampling: trapezoidal rule, which converges exponentially for these smooth
// integrands (Trefethen and Weideman 2014); absolute error below 1e-7. An expert with offset -inf
// is never chosen: `choices` is at most the number of the other experts, and at most max_choices.
std::vector<double> choice_shares(std::span<const float> offsets, Noise noise, int choices);

}  // namespace moesim::routing
