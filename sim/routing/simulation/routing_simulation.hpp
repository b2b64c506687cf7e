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
// (layer, GPU) is drawn once and routed under each job. Every result is the one that its job gives
// alone, to the bit.
std::vector<ReplicaRouting> simulate_routing(std::span<const RoutingJob> jobs, int replica);

// C of a result: slots that an expert has for one source GPU, of the fullest GPU; 0 where the
// router has no capacity. Of scomoe those of a GPU's own expert, all pools together; of gating
// dropout those of a layer that exchanges.
std::int64_t slots_per_expert(const RoutingJob& job, const ReplicaRouting& routing);

// Throws UsageError when the job cannot be: k' > E, E % P != 0, P > gpus, gpus % P != 0, no tokens;
// ranks that hold different numbers of tokens under base, whose blocks have no empty slots;
// Fidelity::counts where counts_refusal() has a reason.
void check(const RoutingJob& job);

}  // namespace moesim::routing
