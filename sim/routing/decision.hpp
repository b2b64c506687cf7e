#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/choice_table.hpp"
#include "sim/routing/route_orders.hpp"
#include "sim/routing/router_config.hpp"
#include "sim/routing/token_loss.hpp"

namespace moesim::routing {

// What TokenLoss is the quotient of; sums over tokens, so they add up over ranks and groups.
struct LossSums {
  std::int64_t tokens = 0;
  std::int64_t primary_routes = 0, primary_kept = 0;
  std::int64_t nominations = 0, filled = 0;
  std::int64_t partial = 0, unrouted = 0;
  std::int64_t slots = 0;
  std::int64_t ir_rows = 0, duplicate_ir = 0;
  double top_mass = 0, lost_mass = 0, residual = 0;

  LossSums& operator+=(const LossSums& other);
  TokenLoss loss(const RouterConfig& config) const;
};

// Which ranks of a group share an NVLink domain: rank r is GPU first_gpu + r.
struct GroupPlace {
  int first_gpu = 0;
  int gpus_per_domain = 0;  // 0: all of the group
};

// Where the tokens of `rank` may be rectified to under `config`; wanted = 0 without IR.
LocalExperts local_experts(const RouterConfig& config, int experts, int ranks, int rank,
                           const GroupPlace& place);

// The routing decision of one expert-parallel group under one router.
class Decision {
 public:
  // `capacity[rank]`: C of each source. `want_tokens`: also fill kept() and ir_place().
  // The table holds at least config.choices() choices and, with IR, the local experts of
  // local_experts(config, ...) as its set `local_set`.
  void decide(const RouterConfig& config, const ChoiceTable& table, int local_set,
              RouteOrders& orders, std::span<const std::int64_t> capacity, bool want_tokens);

  const LossSums& sums() const { return sums_; }
  const std::vector<std::int32_t>& kept_rows() const { return kept_rows_; }  // [rank, expert]
  const std::vector<std::int32_t>& ir_rows() const { return ir_rows_; }      // [rank]
  // Rows per (source, expert) block of a padded exchange: C, under `group` scope the largest kept
  // count of the group.
  std::int64_t exchanged_capacity() const { return exchanged_capacity_; }
  const std::vector<std::uint64_t>& kept() const { return kept_; }    // [token], bit per choice
  const std::vector<std::int8_t>& ir_place() const { return ir_place_; }  // [token], -1: none

 private:
  void set_limits(const RouterConfig& config, const ChoiceTable& table, RouteOrders& orders,
                  std::span<const std::int64_t> capacity);
  void visit_tokens(const RouterConfig& config, const ChoiceTable& table, int rank, int domain,
                    bool want_tokens);
  void rectify(const RouterConfig& config, const ChoiceTable& table, std::size_t token, int rank,
               std::uint64_t kept, float& processed);
  void count_rows(const RouterConfig& config, const ChoiceTable& table, RouteOrders& orders);

  int local_set_ = 0;
  LossSums sums_;
  std::vector<const Queue*> queues_;   // [choice]
  std::vector<std::int32_t> limits_;   // [choice, domain, expert]: places below it are kept
  std::vector<std::int32_t> kept_rows_, ir_rows_;
  std::int64_t exchanged_capacity_ = 0;
  std::vector<std::uint64_t> kept_;
  std::vector<std::int8_t> ir_place_;
};

}  // namespace moesim::routing
