#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"

namespace moesim::cluster {

// Which ranks hold each expert. An expert on several ranks has replicas, and its load is split
// evenly over them.
struct ExpertPlacement {
  int ranks = 0;
  std::vector<std::vector<int>> ranks_of;  // [expert]: at least one rank each, sorted, distinct

  int experts() const { return static_cast<int>(ranks_of.size()); }
  // Experts and replicas on each rank.
  std::vector<int> slots() const;
  // The load of each rank when expert e brings loads[e], split evenly over its replicas.
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
// By load, equally many experts on every rank: longest processing time first, each expert to the
// least loaded rank that has room. The equal count can make that worse than the contiguous
// placement, which is then returned: the highest load is never above the contiguous one's.
ExpertPlacement balanced_experts(std::span<const double> loads, int ranks);
// With `spare_slots` more experts per rank: the expert with the highest load per replica gets
// another one until the spare slots are used up (or every loaded expert is on every rank); replicas
// are then placed as in balanced_experts(), never two of one expert on one rank. Never worse than
// balanced_experts(), which is returned where the greedy placement would be.
ExpertPlacement replicated_experts(std::span<const double> loads, int ranks, int spare_slots);

// What every rank sends when counts[rank * experts + e] of its tokens go to expert e, at
// `bytes_per_token`. Tokens for an expert with replicas are split evenly over them, the odd ones
// beginning at another replica on every source rank. Tokens for experts on the rank itself are on
// the diagonal. The way back is the transposed matrix. Throws UsageError for counts of another size
// than ranks x experts, counts below 0, and sums that overflow.
ByteMatrix dispatch_bytes(std::span<const std::int64_t> counts, const ExpertPlacement& placement,
                          std::int64_t bytes_per_token);
ByteMatrix transposed(const ByteMatrix& bytes);

}  // namespace moesim::cluster
