#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing/rules/token_loss.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "sim/routing/tokens/route_orders.hpp"

namespace moesim::routing {

// The context of a group: its GPUs (for +ir@node and scomoe) and the seed, replica and layer of its
// random streams.
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

// The result for one expert-parallel group. Tokens are ordered by rank: token t of rank r has index
// rank_begin[r] + t of `tokens`. Rows of [choice, token] are `stride` apart; values beyond their
// tokens are undefined. Routers whose tokens have different numbers of experts fill missing choices
// with no_expert.
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
  // rank with the largest block, otherwise ranks would wait for rows that are never sent.
  std::int64_t exchanged_capacity = 0;
  bool exchanged = true;  // false: gating dropout skipped the all-to-all
  LossSums sums;
  TokenLoss loss;

  // A list in (rank, token, choice) order: all k' routes of every token, including failed ones,
  // followed by the token's IR row, if any.
  std::vector<Route> routes() const;
};

// Writes the result of a decision for each route: slots, weights and IR rows, sizes and losses; the
// caller fills in choices and capacities. With `group` scope slots are numbered over the group.
void collect_routes(const DecisionInput& input, const Decision& decision, RoutedGroup& group);

}  // namespace moesim::routing
