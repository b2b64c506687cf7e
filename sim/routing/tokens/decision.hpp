#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/rules/token_loss.hpp"
#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/route_orders.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// The numerators and denominators of TokenLoss: sums over tokens, which can be added over ranks and
// groups.
struct LossSums {
  std::int64_t tokens = 0;
  std::int64_t primary_routes = 0, primary_kept = 0;
  std::int64_t nominations = 0, filled = 0;
  std::int64_t slots = 0;
  std::int64_t others = 0;  // slots taken by neither: routes that their token did not choose
  double not_chosen = 0;    // of TokenLoss, over tokens
  LossTotals totals;

  LossSums& operator+=(const LossSums& other);
  TokenLoss loss(const RouterConfig& config) const;
};

// Which ranks of a group share an NVLink domain: rank r is GPU first_gpu + r.
struct GroupPlace {
  int first_gpu = 0;
  int gpus_per_domain = 0;  // 0: the whole group
};

// The experts that the tokens of `rank` may be rectified to with `config`; wanted = 0 without IR.
LocalExperts local_experts(const RouterConfig& config, int experts, int ranks, int rank,
                           const GroupPlace& place);

// IrDuplicates::exclude: for every token with fewer than top_k kept routes, the best of its local
// experts without such a route; no_expert if there is none, and for all other tokens. keep [choice,
// token], 0 or 1, keep_stride apart.
struct LocalSearch {
  const ChoiceTable& table;
  int local_set = 0;
  const RouterConfig& config;
  const std::uint8_t* keep = nullptr;
  std::size_t keep_stride = 0;
};
void find_untaken_locals(const LocalSearch& search, std::vector<std::uint16_t>& expert,
                         std::vector<float>& probability);

// The routing decision of one expert-parallel group with one router. The table has at least
// config.choices() choices and, with IR, the local experts of local_experts(config, ...) as its set
// `local_set`.
struct DecisionInput {
  const RouterConfig& config;
  const ChoiceTable& table;
  RouteOrders& orders;
  const TileKernels& kernels;
  int local_set = 0;
  std::span<const std::int64_t> capacity;  // [rank]: C of each source
  // [token]: the mass that residual_loss is relative to, of a token's k best experts. Null: these
  // are the choices of the table.
  const float* reference_mass = nullptr;
};

class Decision {
 public:
  void decide(const DecisionInput& input);

  const LossSums& sums() const { return sums_; }
  const std::vector<std::int32_t>& kept_rows() const { return kept_rows_; }  // [rank, expert]
  const std::vector<std::int32_t>& ir_rows() const { return ir_rows_; }      // [rank]
  // [expert] primary routes to it, kept or not, of all ranks.
  const std::vector<std::int64_t>& demand() const { return demand_; }
  // Rows per (source, expert) block of a padded exchange: C, or with `group` scope the largest kept
  // count of the group.
  std::int64_t exchanged_capacity() const { return exchanged_capacity_; }

  // The tokens of a rank with their decision; valid until the next decide().
  KeptTokens kept_tokens(const DecisionInput& input, int rank) const;
  const std::uint8_t* keep(int choice) const {  // [token], 0 or 1
    return keep_.data() + static_cast<std::size_t>(choice) * keep_stride_;
  }
  const std::uint8_t* has_ir() const { return has_ir_.data(); }  // [token], with IR only

 private:
  void find_queues(const DecisionInput& input);
  void set_limits(const DecisionInput& input);
  void settle_expert(const RouterConfig& config, std::size_t domain, std::size_t expert,
                     std::int64_t slots);
  void flag_kept(const DecisionInput& input);
  void find_ir(const DecisionInput& input);
  double residual(const DecisionInput& input, int rank) const;
  double not_chosen(const DecisionInput& input) const;
  void add_rectified(const KeptTokens& run, std::size_t begin, std::size_t first, std::size_t count,
                     float* processed) const;
  void count_rows(const DecisionInput& input);
  void count_ir_rows(const DecisionInput& input);
  void count_demand(const DecisionInput& input);

  LossSums sums_;
  std::size_t experts_ = 0, domains_ = 0;
  std::vector<const Queue*> queues_;  // [choice]
  std::vector<std::int32_t> limits_;  // [choice, domain, expert]: positions below it are kept
  std::vector<std::int32_t> kept_rows_, ir_rows_;
  std::vector<std::int64_t> demand_;
  std::int64_t exchanged_capacity_ = 0;
  std::size_t keep_stride_ = 0;
  std::vector<std::uint8_t> keep_, has_ir_;
  std::vector<std::uint16_t> ir_expert_;  // [token], with IrDuplicates::exclude only
  std::vector<float> ir_probability_;
};

}  // namespace moesim::routing
