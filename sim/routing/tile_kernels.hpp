#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/base/random.hpp"
#include "sim/routing/simd.hpp"

namespace moesim::routing {

// Sixteen tokens side by side: tile[expert * 16 + token]. Kernels work on tiles, because whatever
// is done per token is then the same operation on neighbouring floats.
inline constexpr int tile_tokens = 16;

// Where a tile's choices go; each pointer is at the tile's first token, 16 values are written per
// choice, `stride` apart.
struct ChoiceOutput {
  std::uint16_t* expert = nullptr;
  float* probability = nullptr;
  std::size_t stride = 0;
};

// The logits of a tile drawn from a score source: per token, its own Philox blocks.
struct NoiseKey {
  PhiloxWords words;
  std::uint64_t first_token = 0;
};

// One implementation per instruction set. All give the same bits.
struct TileKernels {
  // Row-major logits [16, experts], rows `row_stride` floats apart, to a tile.
  void (*transpose)(const float* rows, std::size_t row_stride, int experts, float* tile);

  // The `choices` largest logits of each token, best first, among experts [first, last); equal
  // logits go to the lower expert. Writes the expert and its logit.
  void (*largest)(const float* tile, int first, int last, int choices, const ChoiceOutput& out);

  // sum[token] = sum of exp(a - maximum[token]) as softmax.hpp orders it; NaN where a logit is NaN
  // or +inf, or all are -inf. `scratch` holds as many floats as the tile.
  void (*exp_sum)(const float* tile, int experts, const float* maximum, float* scratch, float* sum);

  // Logits to probabilities, in place: exp(value - maximum) / sum, `choices` rows.
  void (*probabilities)(const float* maximum, const float* sum, int choices,
                        const ChoiceOutput& values);

  // tile = offset[expert] + unit normal noise.
  void (*gaussian)(const NoiseKey& key, int experts, const float* offset, float* tile);
  // tile = offset[expert] + standard Gumbel noise.
  void (*gumbel)(const NoiseKey& key, int experts, const float* offset, float* tile);
};

const TileKernels& tile_kernels(SimdLevel level);

}  // namespace moesim::routing
