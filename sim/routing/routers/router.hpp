#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/routing/routers/group_logits.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/rules/token_loss.hpp"
#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "sim/routing/tokens/route_orders.hpp"
#include "sim/routing/tokens/simd.hpp"

namespace moesim::routing {

// The token-level router on the CPU: the reference that kernels are held to, and the fast path of
// the simulator. Terms: a route is (token, choice, expert); choices 0 .. k-1 are primary, choice k
// is the fill-in nomination; IR rows are extra. Rules as in Zeng et al. 2024, priorities as in the
// libraries named here:
//   token_max   choice after choice, tokens by their largest g        (the paper's code, Tutel BPR)
//   own_score   one queue per expert over all choices, by g           (DeepSpeed top-k, Megatron)
//   position    choice after choice, tokens by index                  (GShard, Switch, Tutel)
//   random      choice after choice, tokens by a seeded uniform key   (DeepSpeed)

// Where and when a group routes: its GPUs (for +ir@node and scomoe) and the random streams of its
// seed, replica and layer.
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
// apart; what lies behind their tokens means nothing. Routers whose tokens have different numbers
// of experts fill the choices that a token has not with no_expert.
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
  std::vector<float> weight;             // [choice, token]; base: sigmoid of the logit
  std::vector<std::int32_t> ir_expert;   // [token], -1: none; empty without IR
  std::vector<float> ir_weight;          // [token]
  std::vector<float> ir_probability;     // [token], g_h
  std::vector<std::int32_t> kept_rows;   // [rank, expert]
  std::vector<std::int32_t> ir_rows;     // [rank that computes them]
  // Rows that every rank must send per (source, expert) block of a padded exchange: those of the
  // largest rank, or each would wait for rows that another never sends.
  std::int64_t exchanged_capacity = 0;
  bool exchanged = true;  // false: gating dropout skipped the all-to-all
  LossSums sums;
  TokenLoss loss;

  // One list in (rank, token, choice) order: all k' routes of every token, failed ones too, each
  // token's IR row, if it has one, behind them.
  std::vector<Route> routes() const;
};

class KindRouter;  // kind_router.hpp

// Reusable: keeps its working memory between calls. Not for use by several threads at once.
class GroupRouter {
 public:
  // Throws UsageError when the router cannot be: dense, soft (it has no routes), k' > E or > 63,
  // E % ranks != 0, and what check_router() refuses.
  GroupRouter(const RouterConfig& config, int experts, int ranks,
              SimdLevel level = best_simd_level());
  ~GroupRouter();
  GroupRouter(const GroupRouter&) = delete;
  GroupRouter& operator=(const GroupRouter&) = delete;

  // Throws UsageError naming rank and token for a NaN or +inf logit, and for logits whose size is
  // not tokens * experts.
  const RoutedGroup& route(std::span<const RankLogits> ranks, const RouterContext& context = {});

 private:
  const RoutedGroup& route_otherwise(std::span<const RankLogits> ranks,
                                     const RouterContext& context);

  RouterConfig config_;
  const TileKernels& kernels_;
  ChoiceTable table_;
  RouteOrders orders_;
  Decision decision_;
  std::unique_ptr<KindRouter> other_;  // of a kind that is not top-k or dropless
  RoutedGroup result_;
};

// What a decision comes to, route by route: slots, weights and IR rows, sizes and losses; the
// choices and capacities themselves are for the caller to bring. Under `group` scope slots count
// over the group.
void collect_routes(const DecisionInput& input, const Decision& decision, RoutedGroup& group);

// One call, nothing kept.
RoutedGroup route_group(const RouterConfig& config, int experts, std::span<const RankLogits> ranks,
                        const RouterContext& context = {});

}  // namespace moesim::routing
