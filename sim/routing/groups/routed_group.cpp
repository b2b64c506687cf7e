#include "sim/routing/groups/routed_group.hpp"

#include <algorithm>

namespace moesim::routing {

namespace {

// Kept routes get their slots in (choice, token) order, so one pass per choice is sufficient.
void assign_slots(const DecisionInput& input, const Decision& decision, RoutedGroup& group) {
  const CapacityScope scope = input.config.capacity_scope;
  const auto experts = static_cast<std::size_t>(group.experts);
  const int domains = input.orders.domains(scope);
  group.slot.resize(static_cast<std::size_t>(group.choices) * group.stride);
  std::vector<std::int32_t> next_slot(static_cast<std::size_t>(domains) * experts, 0);
  for (int choice = 0; choice < group.choices; ++choice) {
    const std::uint16_t* expert = input.table.expert(choice);
    const std::uint8_t* keep = decision.keep(choice);
    std::int32_t* slot = group.slot.data() + static_cast<std::size_t>(choice) * group.stride;
    for (int domain = 0; domain < domains; ++domain) {
      std::int32_t* next = next_slot.data() + static_cast<std::size_t>(domain) * experts;
      const auto end = static_cast<std::size_t>(input.orders.domain_end(scope, domain));
      for (auto token = static_cast<std::size_t>(input.orders.domain_begin(scope, domain));
           token < end; ++token) {
        const std::int32_t kept = keep[token];
        const std::int32_t at = next[expert[token]];
        slot[token] = at | (kept - 1);  // -1 where the route failed
        next[expert[token]] = at + kept;
      }
    }
  }
}

void collect_ir(const DecisionInput& input, const Decision& decision, RoutedGroup& group) {
  if (input.config.rectification == Rectification::none) return;
  group.ir_expert.assign(group.tokens, -1);
  group.ir_probability.assign(group.tokens, 0.0F);
  for (int rank = 0; rank < group.ranks; ++rank) {
    const auto begin = static_cast<std::size_t>(input.table.rank_begin(rank));
    const KeptTokens run = decision.kept_tokens(input, rank);
    for (std::size_t token = 0; token < run.tokens; ++token) {
      if (decision.has_ir()[begin + token] == 0) continue;
      group.ir_expert[begin + token] = run.ir_expert[token];
      group.ir_probability[begin + token] = run.ir_probability[token];
    }
  }
}

void assign_weights(const DecisionInput& input, const Decision& decision, RoutedGroup& group) {
  const bool rectified = input.config.rectification != Rectification::none;
  group.weight.resize(static_cast<std::size_t>(group.choices) * group.stride);
  if (rectified) group.ir_weight.resize(group.tokens);
  for (int rank = 0; rank < group.ranks; ++rank) {
    const auto begin = static_cast<std::size_t>(input.table.rank_begin(rank));
    input.kernels.weigh(decision.kept_tokens(input, rank), input.config.weights,
                        {group.weight.data() + begin, group.stride,
                         rectified ? group.ir_weight.data() + begin : nullptr});
  }
}

void scale_weights(const RouterConfig& config, RoutedGroup& group) {
  if (config.weight_scale == Decimal(1)) return;
  const auto scale = static_cast<float>(config.weight_scale.to_double());
  for (float& weight : group.weight) weight *= scale;
  for (float& weight : group.ir_weight) weight *= scale;
}

}  // namespace

std::vector<Route> RoutedGroup::routes() const {
  std::vector<Route> list;
  list.reserve(static_cast<std::size_t>(choices) * tokens);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto begin = static_cast<std::size_t>(rank_begin[static_cast<std::size_t>(rank)]);
    const auto end = static_cast<std::size_t>(rank_begin[static_cast<std::size_t>(rank) + 1]);
    for (std::size_t token = begin; token < end; ++token) {
      Route route;
      route.rank = rank;
      route.token = static_cast<std::int32_t>(token - begin);
      for (int choice = 0; choice < choices; ++choice) {
        const std::size_t at = static_cast<std::size_t>(choice) * stride + token;
        route.choice = choice;
        if (expert[at] == no_expert) continue;
        route.expert = expert[at];
        route.slot = slot[at];
        route.weight = weight[at];
        route.probability = probability[at];
        route.kind = choice < top_k ? RouteKind::primary : RouteKind::fill;
        list.push_back(route);
      }
      if (ir_expert.empty() || ir_expert[token] < 0) continue;
      route.choice = choices;
      route.expert = ir_expert[token];
      route.slot = slot_ir;
      route.weight = ir_weight[token];
      route.probability = ir_probability[token];
      route.kind = RouteKind::ir;
      list.push_back(route);
    }
  }
  return list;
}

void collect_routes(const DecisionInput& input, const Decision& decision, RoutedGroup& group) {
  group.stride = input.table.stride();
  group.kept_rows = decision.kept_rows();
  group.ir_rows = decision.ir_rows();
  group.exchanged_capacity = decision.exchanged_capacity();
  group.sums = decision.sums();
  group.loss = decision.sums().loss(input.config);
  assign_slots(input, decision, group);
  collect_ir(input, decision, group);
  assign_weights(input, decision, group);
  scale_weights(input.config, group);
}

}  // namespace moesim::routing
