#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing/rules/token_loss.hpp"

namespace moesim::routing {

// Tokens of a layer, drawn and routed by the exact rule, that represent the tokens of all its GPUs:
// what counts are drawn from (counts/sampled_counts.hpp).
struct LayerSample {
  std::size_t tokens = 0;             // a multiple of tile_tokens
  std::vector<std::uint16_t> expert;  // [choice, token], k choices
  // [expert] P(a token has this expert), summing to k, where it is known better than by its
  // frequency in the sample; empty otherwise.
  std::vector<double> shares;
  TokenLoss loss;  // of the sampled tokens, of which none is dropped
  // With a capacity, for what it loses; else empty. [choice, token]: g of the chosen experts.
  // [token]: the largest g of all experts, and the sum of the k largest.
  std::vector<float> probability, best, reference_mass;
};

}  // namespace moesim::routing
