#include "sim/routing/groups/kind_router.hpp"

#include "sim/routing/groups/variant_router.hpp"

namespace moesim::routing {

void KindRouter::start_layer(const GroupLogits& /*logits*/, const RouterContext& /*context*/) {}

GroupOutcome empty_outcome(const KindShape& shape) {
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  GroupOutcome outcome;
  outcome.kept_rows.assign(ranks * experts, 0);
  outcome.ir_rows.assign(ranks, 0);
  outcome.demand.assign(experts, 0);
  return outcome;
}

void clear_routes(RoutedGroup& group) {
  group.stride = group.tokens;
  const std::size_t size = static_cast<std::size_t>(group.choices) * group.stride;
  group.expert.assign(size, no_expert);
  group.probability.assign(size, 0.0F);
  group.slot.assign(size, slot_failed);
  group.weight.assign(size, 0.0F);
}

std::unique_ptr<KindRouter> make_kind_router(const KindShape& shape) {
  const RouterDescriptor& kind = *shape.config.kind;
  if (kind.takes_best && shape.config.varies()) return make_variant_router(shape);
  const auto make = kind.make;
  return make == nullptr ? nullptr : make(shape);
}

}  // namespace moesim::routing
