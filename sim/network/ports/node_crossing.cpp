#include "sim/network/ports/node_crossing.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::network {
namespace {

using profile::Collective;

// The times of an all-to-all.
constexpr double first_peer_us = 1.5;
constexpr double peer_us = 1;
constexpr double fill_us = 95;
constexpr double half_filled_bytes = 4e6;
constexpr double grouped_share = 0.95;

// The times of rings and trees: the figures of NCCL's own model.
constexpr double base_us = 8.4;
constexpr double ring_step_us = 3.4;
constexpr double tree_step_us = 4;
constexpr double node_step_us = 14;
constexpr double ll_step_us = 0.6 * 1.8;
constexpr double ll_share = 0.45;
constexpr double tree_share = 0.92;

// What LL's channels carry at most, bytes of busbw per microsecond.
double most_of_ll(int domains) { return domains == 2 ? 39e3 : 20.4e3; }

CrossingPlan grouped(const CrossingLoad& load, const CrossingCosts& costs) {
  const double filled = load.nic_bytes / (load.nic_bytes + half_filled_bytes);
  const double start = first_peer_us + peer_us * load.peers + fill_us * filled;
  return {.name = "grouped send and receive",
          .beside = Beside::after,
          .start_us = costs.latency_us + start,
          .nic_bytes = load.nic_bytes,
          .share = grouped_share};
}

// The same links without software: both parts at once, each message one latency.
CrossingPlan bare(const CrossingLoad& load, const CrossingCosts& costs) {
  const double borders = load.domains - 1;
  const double rounds = load.kind == Collective::all_to_all   ? 1
                        : load.kind == Collective::all_reduce ? 2 * borders
                                                              : borders;
  // Reduced inside the domains first, then among these.
  const double among_domains = (1 - 1.0 / load.domains) / (1 - 1.0 / load.ranks);
  const bool reduces = load.kind == Collective::all_reduce;
  return {.name = "ideal links",
          .beside = Beside::together,
          .start_us = rounds * costs.latency_us,
          .nic_bytes = reduces ? load.nic_bytes * among_domains : load.nic_bytes};
}

}  // namespace

double tree_turns(int domains) { return domains == 2 ? 1 : domains == 3 ? 1.5 : 2; }

std::vector<CrossingPlan> crossing_plans(const CrossingLoad& load, const CrossingCosts& costs) {
  if (costs.start == 0) return {bare(load, costs)};
  std::vector<CrossingPlan> plans;
  const bool reduces = load.kind == Collective::all_reduce;
  const double turns = reduces ? 2 : 1;
  const double borders = load.domains - 1;
  const double steps = load.ranks - load.domains;  // inside domains, once round the ring
  // A ring inside one domain takes the same steps there.
  const double inside_bytes =
      load.per_domain < 2 ? 1 : (1 - 1.0 / load.ranks) / (1 - 1.0 / load.per_domain);
  const double border_bytes = turns * load.buffer_bytes * (1 - 1.0 / load.ranks);
  const double ll_us = border_bytes / most_of_ll(load.domains);
  if (load.kind == Collective::all_to_all) {
    plans.push_back(grouped(load, costs));
  } else {
    const double more_steps = std::max(steps - (load.per_domain - 1), 0.0);
    plans.push_back({.name = "ring, LL",
                     .beside = Beside::stream,
                     .start_us = turns * (more_steps * ll_step_us + borders * costs.latency_us),
                     .nic_bytes = load.nic_bytes,
                     .share = ll_share,
                     .least_us = ll_us,
                     .inside_bytes = inside_bytes});
    plans.push_back({.name = "ring, Simple",
                     .beside = Beside::steps,
                     .start_us = base_us + turns * (steps * ring_step_us + borders * node_step_us),
                     .nic_bytes = load.nic_bytes,
                     .inside_bytes = inside_bytes,
                     .inside_steps_us = base_us + turns * (load.per_domain - 1) * ring_step_us});
  }
  if (reduces) {
    // A chain of GPUs passes the whole buffer up and down, where the ring that was measured leaves
    // out a rank's own part; a switch that reduces has no chain.
    const double chain_bytes =
        costs.switch_reduces || load.per_domain < 2 ? 1 : 1 / (1 - 1.0 / load.per_domain);
    const double levels = 2 * std::ceil(std::log2(load.domains));
    plans.push_back({.name = "tree, LL",
                     .beside = Beside::stream,
                     .start_us = levels * costs.latency_us,
                     .nic_bytes = load.tree_nic_bytes,
                     .share = ll_share * tree_share,
                     .least_us = ll_us,
                     .inside_bytes = chain_bytes});
    const double nodes_us = levels * node_step_us;
    if (costs.switch_reduces) {
      plans.push_back({.name = "tree over NVLS, Simple",
                       .beside = Beside::stream,
                       .start_us = nodes_us,
                       .nic_bytes = load.tree_nic_bytes,
                       .share = tree_share});
    } else {
      const double chain_us = base_us + 2 * (load.per_domain - 1) * tree_step_us;
      plans.push_back({.name = "tree, Simple",
                       .beside = Beside::steps,
                       .start_us = chain_us + nodes_us,
                       .nic_bytes = load.tree_nic_bytes,
                       .share = tree_share,
                       .inside_bytes = chain_bytes,
                       .inside_steps_us = chain_us});
    }
  }
  const bool grouped_only = load.kind == Collective::all_to_all;
  for (CrossingPlan& plan : plans) {
    plan.start_us *= grouped_only ? costs.start : std::sqrt(costs.start);
  }
  return plans;
}

}  // namespace moesim::network
