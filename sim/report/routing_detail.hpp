#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::report {

// What `moesim route --format json` nests under "detail": losses and imbalance per layer (means
// over replicas), the distributions of imbalance over layers and replicas, bytes per pair of GPUs,
// the share of each expert in the demand by layer, and every replica in a line. Bytes per pair are
// of one row per route kept; with LayerRouting::copies also of distinct tokens, and from each GPU
// to each node but its own. `row_bytes`: one token on its way. All replicas are of `job`; at least
// one.
nlohmann::ordered_json routing_detail(
    const routing::RoutingJob& job,
    std::span<const std::shared_ptr<const routing::ReplicaRouting>> replicas, double row_bytes);

}  // namespace moesim::report
