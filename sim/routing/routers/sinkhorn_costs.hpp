#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/base/simd.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"
#include "sim/routing/tokens/tile_rows.hpp"

namespace moesim::routing {

// exp(logit) of the tokens of one rank, and the scales of experts under which tokens and experts
// have equal sums (Sinkhorn-Knopp). All instruction sets give the same bits: sums are taken in the
// order of experts and of tokens. Keeps its memory between ranks.
class SinkhornCosts {
 public:
  SinkhornCosts(int experts, const TileKernels& kernels, SimdLevel level = best_simd_level());

  // Makes room for that many tokens, whose tiles are to be set.
  void begin(std::int64_t tokens);
  // Sets the costs of 16 tokens from `first_token` on (a multiple of 16) by their logits,
  // [expert][16]; those beyond the last token do not count. A token's own scale changes neither its
  // order nor, but for `least`, the scales of experts: its largest logit is moved to within 40 of
  // 0, where exp stays in the range of float.
  void set_tile(std::int64_t first_token, const float* logits);
  const float* tile(std::int64_t first_token) const;  // [expert][16]

  // `scale` [expert], from 1 on, after rounds of
  //   token scale  = 1 / (S (sum over experts of scale x cost + least))
  //   expert scale = 1 / (E (sum over tokens of token scale x cost + least))
  // until expert scales change by at most the tolerance on average.
  void find_scale(std::vector<float>& scale);

 private:
  // sums_[expert] of a round.
  void add_round(const std::vector<float>& scale);

  std::size_t experts_;
  std::size_t rows_;  // of a tile: experts, up to a multiple of 16; those added are 0
  const TileKernels& kernels_;
  SimdLevel level_;
  std::int64_t tokens_ = 0;
  TileRows costs_;            // [tile, expert][16]
  TileRows turned_;           // [16 tokens][16 experts]
  std::vector<double> sums_;  // [rows]
};

}  // namespace moesim::routing
