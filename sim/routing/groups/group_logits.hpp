#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// The logits of one rank: row-major [tokens, experts], fp32. No tokens is fine.
struct RankLogits {
  std::span<const float> logits;
  std::int64_t tokens = 0;
};

// The logits of an expert-parallel group, tile by tile, wherever they come from. In every tile
// [expert][16] a logit is finite or -inf, and not all of a token's are -inf: logits that are all
// -inf stand for "no preference" and come as zeros.
class GroupLogits {
 public:
  GroupLogits() = default;
  GroupLogits(const GroupLogits&) = delete;
  GroupLogits& operator=(const GroupLogits&) = delete;
  virtual ~GroupLogits() = default;

  virtual int experts() const = 0;
  virtual int ranks() const = 0;
  virtual std::int64_t tokens(int rank) const = 0;
  // 16 tokens from `first_token` on, a multiple of 16; those behind tokens(rank) mean nothing.
  virtual void fill_tile(int rank, std::int64_t first_token, float* tile) const = 0;
  // The `index`-th tile of tokens to train a router on, and how many of the 16 there are.
  virtual int fill_training_tile(std::int64_t index, float* tile) const = 0;

  std::int64_t all_tokens() const;
};

// Drawn: the GPUs of one group of a job. Training tokens are further tokens of the same source, of
// each GPU of the job in turn. Refers to its arguments.
class DrawnLogits final : public GroupLogits {
 public:
  DrawnLogits(const RoutingJob& job, const LogitSource& source, int first_gpu,
              const TileKernels& kernels)
      : job_(job), source_(source), first_gpu_(first_gpu), kernels_(kernels) {}

  int experts() const override { return job_.experts; }
  int ranks() const override { return job_.expert_parallel; }
  std::int64_t tokens(int rank) const override { return job_.tokens_of(first_gpu_ + rank); }
  void fill_tile(int rank, std::int64_t first_token, float* tile) const override;
  int fill_training_tile(std::int64_t index, float* tile) const override;

 private:
  const RoutingJob& job_;
  const LogitSource& source_;
  int first_gpu_;
  const TileKernels& kernels_;
};

// Given: each rank's logits in memory. Training tokens are these tokens over and over. Refers to
// its arguments. Throws UsageError naming rank and token for a logit that is NaN or +inf, when its
// tile is asked for.
class GivenLogits final : public GroupLogits {
 public:
  GivenLogits(std::span<const RankLogits> ranks, int experts, const TileKernels& kernels);

  int experts() const override { return experts_; }
  int ranks() const override { return static_cast<int>(ranks_.size()); }
  std::int64_t tokens(int rank) const override {
    return ranks_[static_cast<std::size_t>(rank)].tokens;
  }
  void fill_tile(int rank, std::int64_t first_token, float* tile) const override;
  int fill_training_tile(std::int64_t index, float* tile) const override;

 private:
  std::span<const RankLogits> ranks_;
  int experts_;
  const TileKernels& kernels_;
  std::vector<std::int64_t> first_tile_;  // [ranks + 1], of all tiles
};

}  // namespace moesim::routing
