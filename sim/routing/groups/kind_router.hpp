#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/routing/groups/group_logits.hpp"
#include "sim/routing/groups/routed_group.hpp"
#include "sim/routing/jobs/token_copies.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// The result of routing one group; names as in LayerRouting.
struct GroupOutcome {
  LossSums sums;
  std::int64_t capacity = 0;
  std::int64_t exchanged_capacity = 0;
  bool exchanged = true;
  std::vector<std::int32_t> kept_rows;  // [rank, expert]
  std::vector<std::int32_t> ir_rows;    // [rank]
  std::vector<std::int64_t> demand;     // [expert]
  TokenCopies copies;
};

// Routes groups by the rule of one kind of router, for the kinds that do not just take each token's
// k best experts. Keeps its working memory between groups; not for several threads at once.
class KindRouter {
 public:
  KindRouter() = default;
  KindRouter(const KindRouter&) = delete;
  KindRouter& operator=(const KindRouter&) = delete;
  virtual ~KindRouter() = default;

  // Before the first group of a layer: what all its groups share. Any group's logits will do.
  virtual void start_layer(const GroupLogits& logits, const RouterContext& context);
  virtual void decide(const GroupLogits& logits, const RouterContext& context) = 0;
  const GroupOutcome& outcome() const { return outcome_; }

  // The routes of the last decide(), all but ranks, experts and tokens of `group`. Only if made
  // with `keep_routes`.
  virtual void collect(RoutedGroup& group) = 0;

 protected:
  GroupOutcome outcome_;
};

struct KindShape {
  const RouterConfig& config;
  int experts = 0;
  int ranks = 0;
  const TileKernels& kernels;
  bool keep_routes = false;
  int nodes = 0;  // of a group, where copies are counted; 0: they are not
};

// What an outcome starts from: no rows anywhere.
GroupOutcome empty_outcome(const KindShape& shape);
// No routes yet for the tokens of `group`, and room for as many choices as it says.
void clear_routes(RoutedGroup& group);

// Null for the kinds that take each token's k best experts, which GroupRouter and LayerRouter route
// themselves. The shape's references must outlive the router.
std::unique_ptr<KindRouter> make_kind_router(const KindShape& shape);

}  // namespace moesim::routing
