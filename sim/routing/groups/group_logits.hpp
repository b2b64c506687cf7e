#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// The logits of one rank: row-major [tokens, experts], fp32. May have no tokens.
struct RankLogits {
  std::span<const float> logits;
  std::int64_t tokens = 0;
};

// The logits of an expert-parallel group, tile by tile, from any source. In every tile [expert][16]
// a logit is finite or -inf, and no token has only -inf: logits that are all -inf mean "no
// preference" and are returned as zeros.
class GroupLogits {
 public:
  GroupLogits() = default;
  GroupLogits(const GroupLogits&) = delete;
  GroupLogits& operator=(const GroupLogits&) = delete;
  virtual ~GroupLogits() = default;

  virtual int experts() const = 0;
  virtual int ranks() const = 0;
  virtual std::int64_t tokens(int rank) const = 0;
  // 16 tokens from `first_token` on, a multiple of 16; tokens beyond tokens(rank) are undefined.
  virtual void fill_tile(int rank, std::int64_t first_token, float* tile) const = 0;
  // The same, but logits of one token may be all -inf, NaN or +inf. Then the sum of its
  // exponentials is NaN, and the caller must call fill_tile(), which returns others or throws.
  virtual void fill_unchecked(int rank, std::int64_t first_token, float* tile) const {
    fill_tile(rank, first_token, tile);
  }
  // The `index`-th tile of tokens to train a router on; returns how many of the 16 are valid.
  virtual int fill_training_tile(std::int64_t index, float* tile) const = 0;
  // Whose training tiles the router's biases are trained on, where not on those of these logits:
  // else null.
  virtual const GroupLogits* trained_on() const { return nullptr; }

  std::int64_t all_tokens() const;
};

// Drawn logits: the GPUs of one group of a job. Training tokens are further tokens of the same
// source, from each GPU of the job in turn. Keeps references to its arguments.
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

// Rounds to the nearest, ties to even; what would become infinite stays as it is. No NaN: adding to
// its low bits may make another value.
void round_to_bf16(std::span<float> values);

// Logits as a router's product in bf16 writes them: rounded to the nearest, ties to even. Keeps a
// reference to its argument.
class RoundedLogits final : public GroupLogits {
 public:
  explicit RoundedLogits(const GroupLogits& exact) : exact_(exact) {}

  int experts() const override { return exact_.experts(); }
  int ranks() const override { return exact_.ranks(); }
  std::int64_t tokens(int rank) const override { return exact_.tokens(rank); }
  void fill_tile(int rank, std::int64_t first_token, float* tile) const override;
  int fill_training_tile(std::int64_t index, float* tile) const override;

 private:
  const GroupLogits& exact_;
};

// The drawn logits of a group as routers see them. Keeps references to its arguments.
class SeenLogits {
 public:
  SeenLogits(const RoutingJob& job, const LogitSource& source, int first_gpu,
             const TileKernels& kernels)
      : drawn_(job, source, first_gpu, kernels), rounded_(drawn_) {}
  SeenLogits(const SeenLogits&) = delete;  // parts refer to each other
  SeenLogits& operator=(const SeenLogits&) = delete;

  // Rounded where the product of that router is in bf16.
  const GroupLogits& by(const RouterConfig& router) const {
    if (router.router_dtype == RouterDtype::bf16) return rounded_;
    return drawn_;
  }

 private:
  DrawnLogits drawn_;
  RoundedLogits rounded_;
};

// Given logits of each rank in memory. Training tokens repeat these tokens. Keeps references to its
// arguments. Throws UsageError naming rank and token for a logit that is NaN or +inf when its tile
// is requested.
class GivenLogits final : public GroupLogits {
 public:
  GivenLogits(std::span<const RankLogits> ranks, int experts, const TileKernels& kernels);

  int experts() const override { return experts_; }
  int ranks() const override { return static_cast<int>(ranks_.size()); }
  std::int64_t tokens(int rank) const override {
    return ranks_[static_cast<std::size_t>(rank)].tokens;
  }
  void fill_tile(int rank, std::int64_t first_token, float* tile) const override;
  void fill_unchecked(int rank, std::int64_t first_token, float* tile) const override;
  int fill_training_tile(std::int64_t index, float* tile) const override;

 private:
  int valid_tokens(int rank, std::int64_t first_token) const;

  std::span<const RankLogits> ranks_;
  int experts_;
  const TileKernels& kernels_;
  std::vector<std::int64_t> first_tile_;  // [ranks + 1], of all tiles
};

}  // namespace moesim::routing
