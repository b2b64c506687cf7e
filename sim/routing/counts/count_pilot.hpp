#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "sim/routing/tokens/route_orders.hpp"

namespace moesim::routing {

// The losses of the pilot's tokens under one job, as shares. `failed` is of the primary routes,
// `attempted` of all k'; `ir` of the tokens.
struct PilotLoss {
  double failed = 0, attempted = 0;
  double partial = 0, lost_mass = 0, unrouted = 0, residual = 0;
  double needing = 0;  // fewer than k kept of k', with IR only
  double ir = 0, duplicate_ir = 0;
};

// What a further route finds at an expert: slots that earlier choices left, and the routes of its
// own choice.
struct Queueing {
  std::int32_t left = 0, waiting = 0;
};

// Where rectified tokens go.
struct IrTargets {
  // [expert] of like popularity: rows to an expert that had just turned the token down over failed
  // primary routes of tokens whose domain it is in, and other rows over tokens whose best local
  // expert it is.
  std::vector<double> failed_rates, other_rates;
};

// A sample of a layer's tokens, drawn from their logits, that stands for the tokens of all GPUs:
// they are alike, and what tells GPUs apart are their counts. Each route of the sample knows where
// it stands, as a quantile Q, among the routes of its choice to experts of like popularity in the
// order of the drop priority. It meets the counts of a GPU that it knows nothing of: of n routes
// there of its choice, some come before it, and it is kept if these leave a slot. How many is
// drawn as if the n were picked from the L - 1 others that its place was told from, without
// replacement (all L - 1 of them, in proportion, where n is more): token and n routes are then a
// sample of independent ones. Binomial(n, Q) would add the scatter of Q, about Q (1 - Q) / L, to
// that of the count, and keep too little of the probability mass, up to 0.1 percentage points.
// Tokens come in blocks of 64, each of which meets the counts of one GPU.
class CountPilot {
 public:
  explicit CountPilot(const TileKernels& kernels) : kernels_(kernels) {}

  static constexpr std::size_t block_tokens = 64;
  static std::size_t blocks_for(int experts);

  // The jobs share their logits. `key`: of what chance has to decide.
  void draw(std::span<const RoutingJob> jobs, const LogitSource& logits, const StreamKey& key);
  // Has to be called for every k' before a job of it is judged. `popularity[e]`: expected choices,
  // of the k', of expert e per token.
  void set_popularity(int choices, std::span<const double> popularity);

  std::size_t blocks() const { return blocks_; }

  // `queues[(block, choice, expert)]`, k' choices.
  PilotLoss judge(const RouterConfig& router, std::span<const Queueing> queues);
  // Of the last judge() under IR, by the experts [first, last) of the tokens' domain.
  std::map<std::pair<int, int>, IrTargets> ir_targets(const RouterConfig& router) const;

  // Of the last judge(), by position under `group` scope: `failed` and `partial` alone, for `parts`
  // equal parts of the order.
  std::vector<PilotLoss> judge_parts(const RouterConfig& router, int parts) const;

 private:
  // index: of a GPU's tokens, or of a group's by a random key; group_index: of a group's, the first
  // rank's before the next one's.
  enum class Order { token_max, index, group_index, own_score, own_weight, nominee };
  using Key = std::tuple<Order, int, int, int>;  // k', top_k (own only), choice
  // The key of a route depends on its expert by that expert's popularity alone, smoothly: experts
  // in the order of their popularity fall into bands with enough routes to tell quantiles from.
  struct Bands {
    std::vector<std::uint16_t> of;  // [expert]
    std::size_t count = 0;
  };
  struct Quantiles {
    std::vector<float> of;             // [token]
    std::vector<std::int32_t> routes;  // [band], L; empty: the quantiles are known for sure
  };

  std::int64_t decide(const RouterConfig& router, int choice, std::span<const Queueing> queues);
  std::int64_t draw_ahead(std::int32_t waiting, double quantile, std::int32_t routes,
                          double chance) const;
  void draw_tables(std::span<const RoutingJob> jobs, const LogitSource& logits);
  const Quantiles& quantiles(const RouterConfig& router, int choice);
  void make_quantiles(const Key& key, Quantiles& quantiles);
  void make_own(Order order, int choices, int top_k);
  KeptTokens kept_tokens(const RouterConfig& router, int rank) const;
  int local_set(const RouterConfig& router) const;

  const TileKernels& kernels_;
  ChoiceTable table_;
  std::size_t blocks_ = 0;
  std::size_t tokens_ = 0;
  std::vector<float> chance_;           // [choice, token], standard normals
  std::vector<double> log_factorials_;  // up to the routes of the pilot
  int local_set_[3] = {};               // of each Rectification
  std::map<int, Bands> bands_;          // by k'
  std::vector<LocalExperts> locals_;    // [set, rank of the table]
  std::map<Key, Quantiles> quantiles_;
  SortScratch scratch_;
  std::vector<std::uint8_t> keep_, has_ir_;
  std::size_t keep_stride_ = 0;
  std::vector<std::uint16_t> ir_expert_;
  std::vector<float> ir_probability_;
};

}  // namespace moesim::routing
