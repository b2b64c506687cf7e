#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// The routing of one replica, not cached. A pure function of its arguments.
ReplicaRouting simulate_routing(const RoutingJob& job, int replica);

// The same for jobs that share their logits (equal logits_key(); UsageError otherwise): each
// (layer, GPU) is drawn once and routed under each job. Every result has the same bits as if its
// job were routed alone.
std::vector<ReplicaRouting> simulate_routing(std::span<const RoutingJob> jobs, int replica);

// C of a result: the slots of an expert for one source GPU, for the fullest GPU; 0 if the router
// has no capacity; with Padding::busiest the rows of the longest block of any layer. For scomoe:
// the slots of a GPU's own expert, over all pools; for gating dropout: those of a layer with an
// exchange.
std::int64_t slots_per_expert(const RoutingJob& job, const ReplicaRouting& routing);

// Throws UsageError for an invalid job: k' > E, E % P != 0, P > gpus, gpus % P != 0, no tokens;
// ranks with different numbers of tokens for base, whose blocks have no empty slots;
// Fidelity::counts if counts_refusal() has a reason.
void check(const RoutingJob& job);

}  // namespace moesim::routing
