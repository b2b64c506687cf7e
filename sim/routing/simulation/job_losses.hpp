#pragma once

#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/tokens/losses.hpp"

namespace moesim::routing {

// The balance losses and the z-loss of each MoE layer of a replica, over the tokens of all ranks of
// a group, mean over expert-parallel groups, from the logits and the choices of simulate_routing();
// sequences are `sequence_tokens` of a rank each (0: all its tokens). Throws UsageError for what
// has none: a router that does not give each token k experts by its scores, counts instead of
// tokens, a trace of choices.
std::vector<AuxiliaryLosses> auxiliary_losses(const RoutingJob& job, int replica,
                                              std::int64_t sequence_tokens = 0);

}  // namespace moesim::routing
