#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sim/routing/counts/pilot_tokens.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/decision.hpp"

namespace moesim::routing {

// The losses of the pilot's tokens under one job, as shares. `failed` is relative to the primary
// routes, `attempted` to all k' routes, `ir` to the tokens.
struct PilotLoss {
  double failed = 0, attempted = 0;
  double partial = 0, lost_mass = 0, unrouted = 0, residual = 0;
  double needing = 0;  // fewer than k of k' kept; with IR only
  double ir = 0, duplicate_ir = 0;
};

// The state of an expert for a further route: slots left by earlier choices, and the routes of the
// same choice.
struct Queueing {
  std::int32_t left = 0, waiting = 0;
};

// The experts that rectified tokens go to.
struct IrTargets {
  // [expert], averaged over experts of similar popularity: the ratio of rows to an expert that has
  // just rejected the token to failed primary routes of tokens in its domain, and the ratio of
  // other rows to tokens whose best local expert it is.
  std::vector<double> failed_rates, other_rates;
};

// A sample of a layer's tokens, drawn from their logits, that represents the tokens of all GPUs:
// tokens of all GPUs have the same distribution, and GPUs differ by their counts. Each route of the
// sample has a quantile Q: its position among the routes of its choice to experts of similar
// popularity, in the order of the drop priority. It is combined with the counts of a GPU that are
// independent of it: of n routes of its choice on that GPU some come before it, and it is kept if
// these leave a slot. Their number is drawn as if the n routes were sampled without replacement
// from the L - 1 other routes that Q was estimated from (all L - 1 of them, scaled, if n is
// larger): the token and the n routes are then a sample of independent routes. Binomial(n, Q) would
// add the variance of Q, about Q (1 - Q) / L, to that of the count, and keep too little of the
// probability mass, by up to 0.1 percentage points. Tokens are in blocks of 64, each combined with
// the counts of one GPU.
class CountPilot {
 public:
  explicit CountPilot(const TileKernels& kernels) : kernels_(kernels) {}

  // The jobs share their logits. `key`: of the random stream for random decisions. `shared`: where
  // pilots are kept that other jobs have too; null: they are not.
  void draw(std::span<const RoutingJob> jobs, const LogitSource& logits, const StreamKey& key,
            PilotCache* shared);
  // Has to be called for every k' before a job with this k' is judged. `popularity[e]`: the
  // expected number of choices, among the k', of expert e per token.
  void set_popularity(int choices, std::span<const double> popularity) {
    drawn_->set_popularity(choices, popularity);
  }

  std::size_t blocks() const { return drawn_->blocks(); }

  // `queues[(block, choice, expert)]`, k' choices.
  PilotLoss judge(const RouterConfig& router, std::span<const Queueing> queues);
  // For the last judge() with IR, by the experts [first, last) of the tokens' domain.
  std::map<std::pair<int, int>, IrTargets> ir_targets(const RouterConfig& router) const;

  // For the last judge() by position with `group` scope: only `failed` and `partial`, for `parts`
  // equal parts of the order.
  std::vector<PilotLoss> judge_parts(const RouterConfig& router, int parts) const;

 private:
  std::int64_t decide(const RouterConfig& router, int choice, std::span<const Queueing> queues);
  bool finds_slot(const Queueing& queue, double quantile, std::int32_t routes, double chance) const;
  KeptTokens kept_tokens(const RouterConfig& router, int rank) const;
  const ChoiceTable& table() const { return drawn_->table(); }

  const TileKernels& kernels_;
  std::shared_ptr<const PilotTokens> drawn_;
  std::vector<double> log_factorials_;  // up to the routes of the pilot
  std::vector<std::uint8_t> keep_, has_ir_;
  std::size_t keep_stride_ = 0;
  std::vector<std::uint16_t> ir_expert_;
  std::vector<float> ir_probability_;
};

}  // namespace moesim::routing
