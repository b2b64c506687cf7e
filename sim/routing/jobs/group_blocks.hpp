#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// The rows of the (source, expert) blocks of a padded exchange, by expert-parallel group. A group
// exchanges among its own GPUs, and agrees on one size of blocks by an all-reduce among them: what
// other groups send does not matter to it.

// Gives each group its size; `blocks` [group].
void set_blocks(std::vector<std::int64_t> blocks, LayerRouting& layer);

// Rows that all blocks have, kept or not. Precondition: the layer exchanges.
double padded_slots(const LayerRouting& layer);

// Every group pads to its own largest count of kept_rows.
void set_largest_kept(const RoutingJob& job, LayerRouting& layer);

// The same under Padding::busiest, with the size aligned, and loss.padded relative to it.
void pad_to_busiest(const RoutingJob& job, LayerRouting& layer);

}  // namespace moesim::routing
