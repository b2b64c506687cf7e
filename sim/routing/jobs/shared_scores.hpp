#pragma once

#include <span>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"

namespace moesim::routing {

// What the logits of jobs that share them are drawn from: the scores of each, but not counts that
// no router of theirs chooses by: those may be of another number of experts.
ScoreSource shared_scores(std::span<const RoutingJob> jobs);

// What of a job its logits may depend on. Borrows the job's placement.
LogitShape logit_shape(const RoutingJob& job);

}  // namespace moesim::routing
