#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "sim/base/random.hpp"
#include "sim/base/simd.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// Sixteen tokens side by side: tile[expert * 16 + token]. Kernels work on tiles, because operations
// per token are then the same operation on neighbouring floats.
inline constexpr int tile_tokens = 16;

inline constexpr int max_choices = 63;     // k', fill-in included
inline constexpr int max_experts = 65534;  // one number means no expert

// The output for a tile's choices; each pointer is at the tile's first token, 16 values are written
// per choice, `stride` apart.
struct ChoiceOutput {
  std::uint16_t* expert = nullptr;
  float* probability = nullptr;
  std::size_t stride = 0;
};

// The logits of a tile drawn from a score source: each token has its own Philox blocks.
struct NoiseKey {
  PhiloxWords words;
  std::uint64_t first_token = 0;
};

// A run of tokens with their places in the queues of their experts, all of one choice.
struct PlacedTokens {
  std::size_t tokens = 0;
  const std::int32_t* place = nullptr;
  const std::uint16_t* expert = nullptr;
};

// A run of tokens of one rank after the decision: the kept routes, and the IR expert of a token
// with fewer than top_k of them. All pointers are at the run's first token.
struct KeptTokens {
  std::size_t tokens = 0;
  int top_k = 0;
  int choices = 0;                     // k'
  const std::uint8_t* keep = nullptr;  // [choice, token], 0 or 1, keep_stride apart
  std::size_t keep_stride = 0;
  const std::uint16_t* expert = nullptr;  // [choice, token], stride apart
  const float* probability = nullptr;
  std::size_t stride = 0;
  const std::uint16_t* ir_expert = nullptr;  // [token], no_expert: nowhere; null: no IR
  const float* ir_probability = nullptr;     // [token]
};

inline constexpr std::uint16_t no_expert = 0xffff;

// Sums over such a run. The masses are added in a fixed order, the same for every instruction set:
// float in runs of a lane (token modulo 16), then double.
struct LossTotals {
  double top_mass = 0, lost_mass = 0, residual = 0;
  std::int64_t partial = 0;   // fewer than top_k of the primary routes kept
  std::int64_t unrouted = 0;  // neither a kept route nor an IR row
  std::int64_t ir_rows = 0, duplicate_ir = 0;
};

// The weights of such a run, and which tokens have an IR row.
struct WeightOutput {
  float* weight = nullptr;  // [choice, token], stride apart
  std::size_t stride = 0;
  float* ir_weight = nullptr;  // [token]; null without IR
};

// Which values of a column are among its largest: those above `least`, by their bits, and the equal
// ones up to place `last`.
struct Cut {
  std::int32_t least = std::numeric_limits<std::int32_t>::max();
  std::uint32_t last = 0;

  bool takes(float value, std::size_t place) const {
    const auto bits = std::bit_cast<std::int32_t>(value);
    return (bits > least) | ((bits == least) & (place <= last));
  }
};

// Four tiles of exponentials, of consecutive tokens, each token's sum, and which tokens there are.
inline constexpr int block_tiles = 4;
inline constexpr int block_tokens = block_tiles * tile_tokens;
struct ExpBlock {
  const float* e = nullptr;    // [tile, experts, 16]
  const float* sum = nullptr;  // [64]
  int experts = 0;
  std::uint64_t valid = ~std::uint64_t{0};  // bit t: token t
  std::uint32_t first_token = 0;
};

// For each expert a list of tokens in ascending order, and their exponentials. A block's cell is
// listed if e >= reach[expert] * sum. 15 places behind a list are working memory.
struct CellLists {
  float* e = nullptr;
  std::uint32_t* token = nullptr;
  std::uint32_t* next = nullptr;  // [expert]: where its list ends
};

// One such list: the first `divided` of `held` are e / sum. Both arrays have room for held + 32.
struct CellList {
  float* e = nullptr;
  std::uint32_t* token = nullptr;
  std::size_t divided = 0, held = 0;
  const float* sum = nullptr;  // [token]
  // If the first is above 0: a bound that about all reach, and one that about as many reach as are
  // wanted. They save time if they are right.
  float bound = 0, expected = 0;
};

// A run of tokens after each expert took some. 16 tokens more can be read, whose takers are 0.
struct TakenTokens {
  std::size_t tokens = 0;
  const std::uint16_t* takers = nullptr;  // [token], how many
  // [taker, token], stride apart, in the order of experts: the bits of g, and in the low half
  // expert << slot_bits | slot, which is not -1.
  const std::uint64_t* taken = nullptr;
  unsigned slot_bits = 0;
  int top_k = 0;
  const std::uint16_t* best = nullptr;  // [choice, token], stride apart: the best experts, and g
  const float* best_probability = nullptr;
  std::size_t stride = 0;
};

// [choice, token], stride apart; missing ones: no_expert, slot -1, 0. Null: not wanted.
struct SortedTakers {
  std::uint16_t* expert = nullptr;
  float* probability = nullptr;
  std::int32_t* slot = nullptr;
  float* weight = nullptr;
  std::size_t stride = 0;
  int choices = 0;  // of the token with most takers, or more
};

// One implementation per instruction set, all with the same bits.
struct TileKernels {
  // Row-major logits [16, experts], rows `row_stride` floats apart, to a tile.
  void (*transpose)(const float* rows, std::size_t row_stride, int experts, float* tile);

  // Bit t: a logit of token t is NaN or infinite.
  unsigned (*not_finite)(const float* tile, int experts);

  // The `choices` largest logits of each token, best first, among experts [first, last); equal
  // logits go to the lower expert. Writes the expert and its logit.
  void (*largest)(const float* tile, int first, int last, int choices, const ChoiceOutput& out);

  // The same in each group of `per_group` neighbours: [group, choice, token], stride apart.
  void (*largest_of_groups)(const float* tile, int groups, int per_group, int choices,
                            const ChoiceOutput& out);

  // The same among the experts of all groups that reach the bound of their group, [group][16], of
  // which each token has at least `choices`: fast where few do. False, and nothing is written, for
  // numbers of choices that there is no kernel for.
  bool (*largest_reaching)(const float* tile, int groups, int per_group, const float* bounds,
                           int choices, const ChoiceOutput& out);

  // The positions of the `wanted` <= count largest of `count` probabilities, ties: lower positions
  // first, in ascending order, and these probabilities. Behind the values, up to a whole tile,
  // there are zeros. Both outputs have room for count + 64 and are working memory beyond `wanted`.
  Cut (*largest_places)(const float* values, std::size_t count, std::size_t wanted,
                        std::uint32_t* places, float* taken);

  // Appends the cells of a block that reach a bound to the lists of their experts.
  void (*list_cells)(const ExpBlock& block, const float* reach, const CellLists& lists);
  // Divides a list by its tokens' sums, then keeps the `wanted` <= held largest, ties: lower tokens
  // first, in ascending order of tokens. Returns a bound that all kept ones reach, and no other but
  // for ties.
  float (*keep_cells)(const CellList& list, std::size_t wanted);
  // The cut of largest_places alone, for wanted < count.
  Cut (*find_cut)(const float* values, std::size_t count, std::size_t wanted);

  // The routes of taken tokens, best first, ties: the first taker first, with their weights. Adds
  // the losses to `totals` and returns how many of the best experts took their token. `scratch`
  // holds 2 x 16 floats for each of the most takers that a token has.
  std::int64_t (*settle_takers)(const TakenTokens& run, Weights mode, float* scratch,
                                const SortedTakers& out, LossTotals& totals);

  // sum[token] = sum of exp(a - maximum[token]) as softmax.hpp orders it; NaN where a logit is NaN
  // or +inf, or all are -inf. `scratch` holds as many floats as the tile.
  void (*exp_sum)(const float* tile, int experts, const float* maximum, float* scratch, float* sum);
  // The same; replaces the logits by these exponentials.
  void (*exps)(float* tile, int experts, const float* maximum, float* scratch, float* sum);

  // Logits to probabilities, in place: exp(value - maximum) / sum, `choices` rows.
  void (*probabilities)(const float* maximum, const float* sum, int choices,
                        const ChoiceOutput& values);

  // For a tile of logits: score = sigmoid(a), with exp(-|a|) as in softmax.hpp; replaces the logit
  // by score + bias[expert], or by the lowest finite float if the logit is -inf.
  void (*biased_sigmoids)(float* tile, int experts, const float* bias, float* score);

  // keep[token] = 1 where the token's place is below the limit of its expert, otherwise 0.
  void (*flag_places)(const PlacedTokens& tokens, const std::int32_t* limit, int experts,
                      std::uint8_t* keep);
  // Adds a run to `totals`; `has_ir`, if not null, receives 1 per token that gets an IR row.
  void (*add_losses)(const KeptTokens& tokens, std::uint8_t* has_ir, LossTotals& totals);
  // The weights of a run for each mode (router_config.hpp). A token that only IR processes has
  // weight 1 with Weights::kept, whatever g_h is.
  void (*weigh)(const KeptTokens& tokens, Weights mode, const WeightOutput& out);

  // tile = offset[expert] + unit normal noise.
  void (*gaussian)(const NoiseKey& key, int experts, const float* offset, float* tile);
  // tile = offset[expert] + standard Gumbel noise.
  void (*gumbel)(const NoiseKey& key, int experts, const float* offset, float* tile);
};

const TileKernels& tile_kernels(SimdLevel level);

}  // namespace moesim::routing
