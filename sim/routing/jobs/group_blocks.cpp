#include "sim/routing/jobs/group_blocks.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace moesim::routing {

namespace {

// [group], of kept_rows.
std::vector<std::int64_t> largest_kept(const RoutingJob& job, const LayerRouting& layer) {
  const auto cells = static_cast<std::ptrdiff_t>(job.expert_parallel) * job.experts;
  std::vector<std::int64_t> largest;
  for (auto group = layer.kept_rows.begin(); group < layer.kept_rows.end(); group += cells) {
    largest.push_back(*std::max_element(group, group + cells));
  }
  return largest;
}

}  // namespace

void set_blocks(std::vector<std::int64_t> blocks, LayerRouting& layer) {
  layer.exchanged_capacity = *std::max_element(blocks.begin(), blocks.end());
  const bool equal = std::all_of(blocks.begin(), blocks.end(), [&](std::int64_t block) {
    return block == layer.exchanged_capacity;
  });
  layer.group_blocks = equal ? std::vector<std::int64_t>() : std::move(blocks);
}

double padded_slots(const LayerRouting& layer) {
  const auto cells = static_cast<double>(layer.kept_rows.size());
  if (layer.group_blocks.empty()) return static_cast<double>(layer.exchanged_capacity) * cells;
  return std::accumulate(layer.group_blocks.begin(), layer.group_blocks.end(), 0.0) * cells /
         static_cast<double>(layer.group_blocks.size());
}

void set_largest_kept(const RoutingJob& job, LayerRouting& layer) {
  set_blocks(largest_kept(job, layer), layer);
}

void pad_to_busiest(const RoutingJob& job, LayerRouting& layer) {
  std::vector<std::int64_t> blocks = largest_kept(job, layer);
  for (std::int64_t& block : blocks) block = job.router.aligned(block);
  set_blocks(std::move(blocks), layer);
  const double slots = padded_slots(layer);
  const double kept = std::accumulate(layer.kept_rows.begin(), layer.kept_rows.end(), 0.0);
  layer.loss.padded = slots > 0 ? (slots - kept) / slots : 0;
}

}  // namespace moesim::routing
