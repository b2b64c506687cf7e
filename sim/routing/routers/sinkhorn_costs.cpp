#include "sim/routing/routers/sinkhorn_costs.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace moesim::routing {

namespace {

// Both figures are those of megatron/core/transformer/moe/moe_utils.py.
constexpr float tolerance = 1e-4F;
constexpr float least = 1e-8F;
// The library has no limit; random logits take 5 to 15.
constexpr int most_rounds = 1000;

constexpr std::size_t side = tile_tokens;  // of a block that is turned

struct RoundKernels {
  // sum[token] = sum over experts of scale[expert] x cost, of a tile [expert][16].
  void (*token_sums)(const float* tile, std::size_t experts, const float* scale, float* sum);
  // sums[expert] += of_token[token] x cost, of `tokens` rows of 16 experts.
  void (*add_tokens)(const float* rows, std::size_t tokens, const float* of_token, double* sums);
};

}  // namespace

#define MOESIM_SIMD_BODY "sim/routing/routers/sinkhorn_kernels.inc"
#include "sim/base/simd_levels.inc"

SinkhornCosts::SinkhornCosts(int experts, const TileKernels& kernels, SimdLevel level)
    : experts_(static_cast<std::size_t>(experts)),
      rows_((experts_ + tile_tokens - 1) / tile_tokens * tile_tokens),
      kernels_(kernels),
      level_(level),
      sums_(rows_) {
  turned_.grow(tile_tokens);
}

void SinkhornCosts::begin(std::int64_t tokens) {
  tokens_ = tokens;
  const std::size_t tiles = (static_cast<std::size_t>(tokens) + tile_tokens - 1) / tile_tokens;
  costs_.grow(tiles * rows_);
}

const float* SinkhornCosts::tile(std::int64_t first_token) const {
  return costs_.data() + static_cast<std::size_t>(first_token) * rows_;
}

void SinkhornCosts::set_tile(std::int64_t first_token, const float* logits) {
  constexpr float largest_logit = 40;
  float shift[tile_tokens];
  std::copy_n(logits, tile_tokens, shift);
  for (std::size_t expert = 1; expert < experts_; ++expert) {
    const float* const row = logits + expert * tile_tokens;
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      shift[place] = std::max(shift[place], row[place]);
    }
  }
  for (float& largest : shift) {
    largest -= std::clamp(largest, -largest_logit, largest_logit);
  }
  float* const cost = costs_.data() + static_cast<std::size_t>(first_token) * rows_;
  for (std::size_t at = 0; at < experts_ * tile_tokens; ++at) {
    cost[at] = std::exp(logits[at] - shift[at % tile_tokens]);
  }
  std::fill(cost + experts_ * tile_tokens, cost + rows_ * tile_tokens, 0.0F);
}

// A token's sum is taken of a tile, lane by lane; those of experts of 16 x 16 costs of a tile that
// are turned, so that experts are lanes.
void SinkhornCosts::add_round(const std::vector<float>& scale) {
  const RoundKernels& rounds = at_level(level_, baseline::kernels, avx2::kernels, avx512::kernels);
  const float share = 1 / static_cast<float>(tokens_);
  float of_token[tile_tokens];
  for (std::int64_t token = 0; token < tokens_; token += tile_tokens) {
    const auto valid =
        static_cast<std::size_t>(std::min<std::int64_t>(tile_tokens, tokens_ - token));
    const float* const costs = tile(token);
    rounds.token_sums(costs, experts_, scale.data(), of_token);
    for (float& sum : of_token) sum = share / (sum + least);
    for (std::size_t expert = 0; expert < rows_; expert += tile_tokens) {
      kernels_.transpose(costs + expert * tile_tokens, tile_tokens, tile_tokens, turned_.data());
      rounds.add_tokens(turned_.data(), valid, of_token, sums_.data() + expert);
    }
  }
}

void SinkhornCosts::find_scale(std::vector<float>& scale) {
  scale.assign(experts_, 1.0F);
  double change = 1;
  for (int round = 0; round < most_rounds && tokens_ > 0 && change > tolerance; ++round) {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    add_round(scale);
    change = 0;
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      const float next =
          1 / static_cast<float>(experts_) / (static_cast<float>(sums_[expert]) + least);
      change += static_cast<double>(std::abs(next - scale[expert])) / static_cast<double>(experts_);
      scale[expert] = next;
    }
  }
}

}  // namespace moesim::routing
