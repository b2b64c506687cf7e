#pragma once

#include <span>
#include <vector>

namespace moesim::cluster {

// Which rank holds each expert.
struct ExpertPlacement {
  int ranks = 0;
  std::vector<int> rank_of;  // [expert]

  int experts() const { return static_cast<int>(rank_of.size()); }
  // Experts on each rank.
  std::vector<int> slots() const;
  // The load of each rank when expert e brings loads[e].
  std::vector<double> rank_loads(std::span<const double> loads) const;
  double highest_load(std::span<const double> loads) const;
  bool operator==(const ExpertPlacement&) const = default;
};

// All functions throw UsageError unless ranks >= 1 and the experts can be shared out evenly, and
// for loads that are negative or not finite. They depend on their arguments alone; ties go to the
// lower expert and the lower rank.

// The house's default: expert e on rank e / (experts / ranks).
ExpertPlacement contiguous_experts(int experts, int ranks);
// Expert e on rank e % ranks.
ExpertPlacement round_robin_experts(int experts, int ranks);
// A placement by load, with equally many experts on every rank: longest processing time first, each
// expert to the least loaded rank that has room. The equal count can make that worse than the
// contiguous placement, which is then returned: the highest load is never above the contiguous
// one's.
ExpertPlacement balanced_experts(std::span<const double> loads, int ranks);

}  // namespace moesim::cluster
