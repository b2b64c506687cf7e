#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"
#include "sim/routing/tokens/tile_rows.hpp"

namespace moesim::routing {

// Whether a job, by tokens, asks of each token for its k best experts alone: every route is kept,
// so that nothing is lost, and no token is counted by where it goes.
bool keeps_all_choices(const RoutingJob& job);

// For each job a text that those have in common which are best routed together, as LayerRouter
// does. That is logits_key(). Where all jobs of one logits_key() keep all choices it is less: the
// logits of a token depend neither on how GPUs are grouped (but for scores that speak of ranks) nor
// on how many tokens come behind it.
std::vector<std::string> shared_keys(std::span<const RoutingJob> jobs);

// Counts the choices of tokens on each GPU, for jobs that keep all of them: a token's logits are
// drawn and its best experts found once for all jobs, whatever their k, tokens and groups. Keeps
// its working memory; use one per thread.
class KeptChoices {
 public:
  explicit KeptChoices(const TileKernels& kernels) : kernels_(kernels) {}

  // As LayerRouter::route(). All jobs keep all choices, and have the same shared_keys().
  void route(std::span<const RoutingJob> jobs, int replica, int layer,
             std::span<LayerRouting> results);

 private:
  void count_gpu(std::span<const RoutingJob> jobs, const LogitSource& logits, int gpu,
                 std::span<LayerRouting> results);
  void count(std::int64_t first, std::int64_t last);
  void add_rows(std::span<const RoutingJob> jobs, std::int64_t tokens,
                std::span<LayerRouting> results) const;

  const TileKernels& kernels_;
  std::size_t experts_ = 0;
  int choices_ = 0;
  std::vector<std::int64_t> ends_;   // numbers of tokens that are asked for, ascending
  TileRows tile_;                    // [expert][16]
  std::vector<std::uint16_t> best_;  // [choice][16] of the tile
  std::vector<float> logit_;         // the same
  std::vector<std::int32_t> rows_;   // [choice, expert] of the GPU's tokens so far
};

}  // namespace moesim::routing
