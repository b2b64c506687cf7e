#pragma once

#include <memory>
#include <span>

#include "sim/base/simd.hpp"
#include "sim/routing/groups/group_logits.hpp"
#include "sim/routing/groups/routed_group.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "sim/routing/tokens/route_orders.hpp"

namespace moesim::routing {

// The token-level router on the CPU: the reference for the kernels, and the fast path of the
// simulator. Terms: a route is (token, choice, expert); choices 0 .. k-1 are primary, choice k is
// the fill-in nomination; IR rows are extra. Rules as in Zeng et al. 2024, priorities as in the
// libraries named here:
//   token_max   choice after choice, tokens by their largest g        (the paper's code, Tutel BPR)
//   own_score   one queue per expert over all choices, by g           (DeepSpeed top-k, Megatron)
//   position    choice after choice, tokens by index                  (GShard, Switch, Tutel)
//   random      choice after choice, tokens by a seeded uniform key   (DeepSpeed)

class KindRouter;  // kind_router.hpp

// Reusable: keeps its working memory between calls. Not thread-safe.
class GroupRouter {
 public:
  // Throws UsageError for routers that are not possible here: dense, soft (it has no routes), k' >
  // E or > 63, E % ranks != 0, and what check_router() refuses.
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

// For a single call; keeps no working memory.
RoutedGroup route_group(const RouterConfig& config, int experts, std::span<const RankLogits> ranks,
                        const RouterContext& context = {});

}  // namespace moesim::routing
