#pragma once

#include <string>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/training/training_job.hpp"

namespace moesim::training {

// As routing::check(); what it throws of the size of a trace names the options of a training step,
// not those of a scenario.
void check_routing(const routing::RoutingJob& job);

// Why the routing of a job does not fit its groups of experts, or the tokens of a rank: recorded
// routing is of some, and counts alone cannot be drawn for all. Empty where it fits, and where
// routing is neither recorded nor asked for by counts.
std::string routing_misfit(const TrainingJob& job);

}  // namespace moesim::training
