#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/choice_table.hpp"
#include "sim/routing/decision.hpp"
#include "sim/routing/route_orders.hpp"
#include "sim/routing/router_config.hpp"
#include "sim/routing/simd.hpp"
#include "sim/routing/token_loss.hpp"

namespace moesim::routing {

// The token-level router on the CPU: the reference that kernels are held to, and the fast path of
// the simulator. Terms: a route is (token, choice, expert); choices 0 .. k-1 are primary, choice k
// is the fill-in nomination; IR rows are extra. Rules as in Zeng et al. 2024, priorities as in the
// libraries named here:
//   token_max   choice after choice, tokens by their largest g        (the paper's code, Tutel BPR)
//   own_score   one queue per expert over all choices, by g           (DeepSpeed top-k, Megatron)
//   position    choice after choice, tokens by index                  (GShard, Switch, Tutel)
//   random      choice after choice, tokens by a seeded uniform key   (DeepSpeed)

// The logits of one rank: row-major [tokens, experts], fp32. No tokens is fine.
struct RankLogits {
  std::span<const float> logits;
  std::int64_t tokens = 0;
};

// Where and when a group routes: its GPUs (for +ir@node) and the streams of Priority::random.
struct RouterContext {
  GroupPlace place;
  std::uint64_t seed = 1;
  std::uint32_t replica = 0;
  std::uint32_t layer = 0;
};

enum class RouteKind : std::uint8_t { primary, fill, ir };

inline constexpr std::int32_t slot_failed = -1;
inline constexpr std::int32_t slot_ir = -2;

struct Route {
  std::int32_t rank = 0;
  std::int32_t token = 0;   // of its rank
  std::int32_t choice = 0;  // k' for an IR row
  std::int32_t expert = 0;
  std::int32_t slot = slot_failed;  // [0, C) of the source, under `group` scope [0, sum of C)
  float weight = 0;                 // 0 for a failed route
  float probability = 0;
  RouteKind kind = RouteKind::primary;
  bool operator==(const Route&) const = default;
};

// The result for one expert-parallel group. Tokens of all ranks follow each other, rank first:
// token t of rank r is index rank_begin[r] + t of `tokens`. Rows of [choice, token] are `stride`
// apart; what lies behind their tokens means nothing.
struct RoutedGroup {
  int ranks = 0;
  int experts = 0;
  int top_k = 0;
  int choices = 0;  // k'
  std::size_t tokens = 0;
  std::size_t stride = 0;                // at least tokens
  std::vector<std::int64_t> rank_begin;  // [ranks + 1]
  std::vector<std::int64_t> capacity;    // [rank], C
  std::vector<std::uint16_t> expert;     // [choice, token]
  std::vector<float> probability;        // [choice, token]
  std::vector<std::int32_t> slot;        // [choice, token]
  std::vector<float> weight;             // [choice, token]
  std::vector<std::int32_t> ir_expert;   // [token], -1: none; empty without IR
  std::vector<float> ir_weight;          // [token]
  std::vector<float> ir_probability;     // [token], g_h
  std::vector<std::int32_t> kept_rows;   // [rank, expert]
  std::vector<std::int32_t> ir_rows;     // [rank that computes them]
  std::int64_t exchanged_capacity = 0;   // rows per block of a padded exchange, largest rank
  LossSums sums;
  TokenLoss loss;

  // One list in (rank, token, choice) order: all k' routes of every token, failed ones too, each
  // token's IR row, if it has one, behind them.
  std::vector<Route> routes() const;
};

// Reusable: keeps its working memory between calls. Not for use by several threads at once.
class GroupRouter {
 public:
  // Throws UsageError when the router cannot be: dense, k' > E or > 63, E % ranks != 0.
  GroupRouter(const RouterConfig& config, int experts, int ranks,
              SimdLevel level = best_simd_level());

  // Throws UsageError naming rank and token for a NaN or +inf logit, and for logits whose size is
  // not tokens * experts.
  const RoutedGroup& route(std::span<const RankLogits> ranks, const RouterContext& context = {});

 private:
  void assign_slots();
  void assign_weights(const DecisionInput& input);
  void collect_ir(const DecisionInput& input);

  RouterConfig config_;
  const TileKernels& kernels_;
  ChoiceTable table_;
  RouteOrders orders_;
  Decision decision_;
  std::vector<std::int32_t> next_slot_;
  RoutedGroup result_;
};

// One call, nothing kept.
RoutedGroup route_group(const RouterConfig& config, int experts, std::span<const RankLogits> ranks,
                        const RouterContext& context = {});

// Rows per (source, expert) block that every rank of the group must send in a padded exchange.
// Throws UsageError when ranks have different capacities because they hold different numbers of
// tokens: each would wait for rows that another never sends.
std::int64_t padded_exchange_rows(const RoutedGroup& group);

}  // namespace moesim::routing
