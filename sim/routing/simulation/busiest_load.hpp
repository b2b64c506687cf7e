#pragma once

#include <span>

#include "sim/routing/tokens/choice_shares.hpp"

namespace moesim::routing {

// The share of the busiest of `ranks` equal blocks of experts times `ranks`, where each token
// chooses the k experts with the best scores, an expert's offset plus a token's noise. Much faster
// than choice_shares(): the k-th best score of a token is taken to lie where k experts are expected
// above it, and an expert to be chosen as often as it gets there. That is up to 4 % low, with
// normal noise and k = 1 up to 9 %, and follows the exact load closely (correlation above 0.99).
// With Gumbel noise and k = 1 experts are chosen in proportion to exp(offset), exactly.
double busiest_load(std::span<const float> offsets, Noise noise, int ranks, int k);

}  // namespace moesim::routing
