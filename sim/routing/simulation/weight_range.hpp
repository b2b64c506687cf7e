#pragma once

#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// The token loss of a job whose weights are drawn (loss_basis()), relative to that of logits of the
// spread that is taken, if the logits that gave its counts were `factor` times as large, or 1 /
// `factor`: each token then chooses the same experts, with more weight on its best ones, or less.
struct WeightRange {
  double of_larger = 1;
  double of_smaller = 1;
};

// From the logits of one expert-parallel group, the same in all three cases, in at most two layers:
// all of a GPU's tokens, or as many as make 16 million logits. 1 and 1 where these lose nothing.
// Precondition: check() of the job passes, factor > 1, loss_basis() is "drawn weights".
WeightRange weight_range(const RoutingJob& job, int replica, double factor);

}  // namespace moesim::routing
