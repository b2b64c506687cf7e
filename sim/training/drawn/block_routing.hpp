#pragma once

#include <string>
#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// MoE layers of a step, those of prediction depths too.
int drawn_layers(const TrainingJob& job);

// One routing of all MoE layers, those of prediction depths last, by one block of ranks. By counts
// where these are offered, unless the job says otherwise. Precondition: job.routing.
routing::RoutingJob block_routing(const TrainingJob& job);

// The replicas that the routing of a job is drawn of. Drawn per layer: each is a step of its own,
// of which the mean counts; per micro-batch: [micro-batch], or one for all. Without a trace
// DrawnRouting::replica; of a trace the recorded steps, from 0 on, or most_recorded_steps of them
// evenly spread, and micro-batch m of M takes step m S / M. Precondition: job.routing.
inline constexpr int most_recorded_steps = 16;
std::vector<int> drawn_replicas(const TrainingJob& job);

// Why training cannot draw a router, behind its name; empty if it can.
std::string draw_refusal(const routing::RouterConfig& router);
// Throws UsageError for a recorded step that the routing does not have.
void check_trace_step(const DrawnRouting& drawn);
// The same, and UsageError with draw_refusal(), and for sources with different numbers of tokens.
void check_drawn(const DrawnRouting& drawn);

}  // namespace moesim::training
