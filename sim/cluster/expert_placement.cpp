#include "sim/cluster/expert_placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"

namespace moesim::cluster {
namespace {

void check_counts(int experts, int ranks) {
  if (ranks < 1 || experts < 1 || experts % ranks != 0) {
    throw UsageError(
        fmt::format("{} experts cannot be shared out evenly over {} ranks", experts, ranks));
  }
}

void check_loads(std::span<const double> loads) {
  for (std::size_t expert = 0; expert < loads.size(); ++expert) {
    if (loads[expert] >= 0 && std::isfinite(loads[expert])) continue;
    throw UsageError(fmt::format("expert {}: a load of {}: loads are finite and not below 0",
                                 expert, loads[expert]));
  }
}

// Longest processing time first: the heaviest experts are placed while all ranks are open to them.
ExpertPlacement pack(std::span<const double> loads, int ranks) {
  std::vector<std::size_t> order(loads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t left, std::size_t right) { return loads[left] > loads[right]; });
  const std::size_t room = loads.size() / static_cast<std::size_t>(ranks);
  std::vector<double> load(static_cast<std::size_t>(ranks));  // [rank]
  std::vector<std::size_t> held(load.size());                 // [rank]
  ExpertPlacement placement{ranks, std::vector<int>(loads.size())};
  for (const std::size_t expert : order) {
    std::size_t best = load.size();
    for (std::size_t rank = 0; rank < load.size(); ++rank) {
      if (held[rank] == room) continue;
      if (best == load.size() || load[rank] < load[best]) best = rank;
    }
    placement.rank_of[expert] = static_cast<int>(best);
    load[best] += loads[expert];
    ++held[best];
  }
  return placement;
}

}  // namespace

std::vector<int> ExpertPlacement::slots() const {
  std::vector<int> counts(static_cast<std::size_t>(ranks));
  for (const int rank : rank_of) ++counts[static_cast<std::size_t>(rank)];
  return counts;
}

std::vector<double> ExpertPlacement::rank_loads(std::span<const double> loads) const {
  std::vector<double> sums(static_cast<std::size_t>(ranks));
  for (std::size_t expert = 0; expert < rank_of.size(); ++expert) {
    sums[static_cast<std::size_t>(rank_of[expert])] += loads[expert];
  }
  return sums;
}

double ExpertPlacement::highest_load(std::span<const double> loads) const {
  const std::vector<double> sums = rank_loads(loads);
  return *std::max_element(sums.begin(), sums.end());
}

ExpertPlacement contiguous_experts(int experts, int ranks) {
  check_counts(experts, ranks);
  ExpertPlacement placement{ranks, {}};
  for (int expert = 0; expert < experts; ++expert) {
    placement.rank_of.push_back(expert / (experts / ranks));
  }
  return placement;
}

ExpertPlacement round_robin_experts(int experts, int ranks) {
  check_counts(experts, ranks);
  ExpertPlacement placement{ranks, {}};
  for (int expert = 0; expert < experts; ++expert) placement.rank_of.push_back(expert % ranks);
  return placement;
}

ExpertPlacement balanced_experts(std::span<const double> loads, int ranks) {
  ExpertPlacement contiguous = contiguous_experts(static_cast<int>(loads.size()), ranks);
  check_loads(loads);
  ExpertPlacement greedy = pack(loads, ranks);
  const bool worse = greedy.highest_load(loads) > contiguous.highest_load(loads);
  return worse ? contiguous : greedy;
}

}  // namespace moesim::cluster
