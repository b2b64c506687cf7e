#pragma once

#include <string>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// As routing::check(), of a trace with as many ranks as a pipeline stage of `asked` has, of which
// `job` may route some; it throws the text of a RoutingRefusal in training.
void check_routing(const routing::RoutingJob& job, const TrainingJob& asked);

// Why the routing of a job does not fit its ranks and experts, or the tokens of a rank: recorded
// routing is of some, and counts alone cannot be drawn for all. Empty where it fits, and where
// routing is neither recorded nor asked for by counts.
std::string routing_misfit(const TrainingJob& job);

}  // namespace moesim::training
