#pragma once

#include <vector>

#include "sim/routing/rules/token_loss.hpp"

namespace moesim::routing {

// What the counts of a layer are drawn from, for kinds of routers that estimate it from sampled
// tokens.
struct LayerShares {
  std::vector<double> shares;  // [expert], P(a token has this expert); they sum to k
  TokenLoss loss;              // of the sampled tokens
};

}  // namespace moesim::routing
