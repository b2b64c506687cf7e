#pragma once

#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/tokens/losses.hpp"

namespace moesim::routing {

// The balance losses and the z-loss of each MoE layer of a replica, over the tokens of all ranks of
// the first expert-parallel group, from the logits that simulate_routing() routes. Throws
// UsageError for what has none: a router without a gate or with other scores than a softmax's,
// counts instead of tokens, a trace of choices.
std::vector<AuxiliaryLosses> auxiliary_losses(const RoutingJob& job, int replica);

}  // namespace moesim::routing
