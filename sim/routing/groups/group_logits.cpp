#include "sim/routing/groups/group_logits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sim/base/error.hpp"

namespace moesim::routing {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::int64_t tiles_of(std::int64_t tokens) { return (tokens + tile_tokens - 1) / tile_tokens; }

// Zeros for a token whose logits are all -inf; an error for NaN and +inf.
void repair(float* tile, int experts, int rank, std::int64_t token, int place) {
  float largest = -infinity;
  for (int expert = 0; expert < experts; ++expert) {
    const float logit = tile[expert * tile_tokens + place];
    if (!(logit < infinity)) {
      throw UsageError(fmt::format(
          "the logits of rank {}, token {} hold {} at expert {}: a softmax needs finite logits "
          "or -inf; check what wrote them",
          rank, token + place, std::isnan(logit) ? "NaN" : "+inf", expert));
    }
    largest = std::max(largest, logit);
  }
  if (largest != -infinity) return;
  for (int expert = 0; expert < experts; ++expert) tile[expert * tile_tokens + place] = 0.0F;
}

// The first `valid` tokens of a tile. Few tokens have a logit that is not finite.
void repair_tile(float* tile, int experts, int valid, int rank, std::int64_t first_token,
                 const TileKernels& kernels) {
  const unsigned suspects = kernels.not_finite(tile, experts);
  if (suspects == 0) return;
  for (int place = 0; place < valid; ++place) {
    if ((suspects >> place & 1) != 0) repair(tile, experts, rank, first_token, place);
  }
}

}  // namespace

std::int64_t GroupLogits::all_tokens() const {
  std::int64_t sum = 0;
  for (int rank = 0; rank < ranks(); ++rank) sum += tokens(rank);
  return sum;
}

void DrawnLogits::fill_tile(int rank, std::int64_t first_token, float* tile) const {
  source_.fill_tile(static_cast<std::uint32_t>(first_gpu_ + rank),
                    static_cast<std::uint64_t>(first_token), kernels_, tile);
  if (job_.scores.trace == nullptr) return;
  // A recorded token may be all -inf.
  repair_tile(tile, job_.experts, tile_tokens, first_gpu_ + rank, first_token, kernels_);
}

int DrawnLogits::fill_training_tile(std::int64_t index, float* tile) const {
  const std::int64_t behind = tiles_of(job_.tokens_per_gpu) + index / job_.gpus;
  source_.fill_tile(static_cast<std::uint32_t>(index % job_.gpus),
                    static_cast<std::uint64_t>(behind * tile_tokens), kernels_, tile);
  if (job_.scores.trace != nullptr) {
    repair_tile(tile, job_.experts, tile_tokens, static_cast<int>(index % job_.gpus),
                behind * tile_tokens, kernels_);
  }
  return tile_tokens;
}

void round_to_bf16(std::span<float> values) {
  constexpr std::uint32_t dropped = 0xffff;
  constexpr std::uint32_t infinite = 0x7f800000;
  for (float& value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + (dropped >> 1) + (bits >> 16 & 1)) & ~dropped;
    const bool finite = (rounded & ~(std::uint32_t{1} << 31)) < infinite;
    value = finite ? std::bit_cast<float>(rounded) : value;
  }
}

void RoundedLogits::fill_tile(int rank, std::int64_t first_token, float* tile) const {
  exact_.fill_tile(rank, first_token, tile);
  round_to_bf16({tile, static_cast<std::size_t>(exact_.experts()) * tile_tokens});
}

int RoundedLogits::fill_training_tile(std::int64_t index, float* tile) const {
  const int valid = exact_.fill_training_tile(index, tile);
  round_to_bf16({tile, static_cast<std::size_t>(exact_.experts()) * tile_tokens});
  return valid;
}

GivenLogits::GivenLogits(std::span<const RankLogits> ranks, int experts, const TileKernels& kernels)
    : ranks_(ranks), experts_(experts), kernels_(kernels), first_tile_(1, 0) {
  for (const RankLogits& rank : ranks) {
    first_tile_.push_back(first_tile_.back() + tiles_of(rank.tokens));
  }
}

int GivenLogits::valid_tokens(int rank, std::int64_t first_token) const {
  return static_cast<int>(std::min<std::int64_t>(tile_tokens, tokens(rank) - first_token));
}

void GivenLogits::fill_unchecked(int rank, std::int64_t first_token, float* tile) const {
  const auto width = static_cast<std::size_t>(experts_);
  const int valid = valid_tokens(rank, first_token);
  const float* rows = ranks_[static_cast<std::size_t>(rank)].logits.data() +
                      static_cast<std::size_t>(first_token) * width;
  std::vector<float> last_rows;
  if (valid < tile_tokens) {
    last_rows.assign(rows, rows + static_cast<std::size_t>(valid) * width);
    last_rows.resize(tile_tokens * width, 0.0F);
    rows = last_rows.data();
  }
  kernels_.transpose(rows, width, experts_, tile);
}

void GivenLogits::fill_tile(int rank, std::int64_t first_token, float* tile) const {
  fill_unchecked(rank, first_token, tile);
  repair_tile(tile, experts_, valid_tokens(rank, first_token), rank, first_token, kernels_);
}

int GivenLogits::fill_training_tile(std::int64_t index, float* tile) const {
  if (first_tile_.back() == 0) return 0;
  const std::int64_t wanted = index % first_tile_.back();
  const auto behind = std::upper_bound(first_tile_.begin(), first_tile_.end(), wanted);
  const auto rank = static_cast<int>(behind - first_tile_.begin()) - 1;
  const std::int64_t first = (wanted - *(behind - 1)) * tile_tokens;
  fill_tile(rank, first, tile);
  return valid_tokens(rank, first);
}

}  // namespace moesim::routing
