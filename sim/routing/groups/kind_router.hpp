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

// The result of routing one group, with the names of LayerRouting.
struct GroupOutcome {
  LossSums sums;
  std::int64_t capacity = 0;
  std::int64_t exchanged_capacity = 0;
  bool exchanged = true;
  std::vector<std::int32_t> kept_rows;  // [rank, expert]
  std::vector<std::int32_t> ir_rows;    // [rank]
  std::vector<std::int64_t> demand;     // [expert]; expert-choice: without keep_routes
  TokenCopies copies;
};

// Routes groups by the rule of one kind of router, for kinds that do not simply take each token's k
// best experts. Keeps its working memory between groups; not thread-safe.
class KindRouter {
 public:
  KindRouter() = default;
  KindRouter(const KindRouter&) = delete;
  KindRouter& operator=(const KindRouter&) = delete;
  virtual ~KindRouter() = default;

  // Called before the first group of a layer: prepares what all its groups share. The logits may be
  // of any group.
  virtual void start_layer(const GroupLogits& logits, const RouterContext& context);
  virtual void decide(const GroupLogits& logits, const RouterContext& context) = 0;
  const GroupOutcome& outcome() const { return outcome_; }

  // Writes the routes of the last decide(), except ranks, experts and tokens of `group`. Only if
  // constructed with `keep_routes`.
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
  int nodes = 0;  // of a group, if copies are counted; 0: not counted
};

// An empty outcome: no rows.
GroupOutcome empty_outcome(const KindShape& shape);
// Clears the routes of the tokens of `group`, with room for its number of choices.
void clear_routes(RoutedGroup& group);

// Null for kinds that take each token's k best experts, which GroupRouter and LayerRouter route.
// The references in the shape must outlive the router.
std::unique_ptr<KindRouter> make_kind_router(const KindShape& shape);

}  // namespace moesim::routing
