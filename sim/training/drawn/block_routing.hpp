#pragma once

#include <string>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// MoE layers of a step, those of prediction depths too.
int drawn_layers(const TrainingJob& job);

// One routing of all MoE layers, those of prediction depths last, by one block of ranks. By counts
// where these are offered, unless the job says otherwise. Precondition: job.routing.
routing::RoutingJob block_routing(const TrainingJob& job);

// Why training cannot draw a router, behind its name; empty if it can.
std::string draw_refusal(const routing::RouterConfig& router);
// Throws UsageError with draw_refusal(), and for sources with different numbers of tokens.
void check_drawn(const DrawnRouting& drawn);

}  // namespace moesim::training
