#pragma once

#include <cstddef>
#include <vector>

#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// The residual_loss of further steps of a job: other tokens, and another popularity of experts
// where its source draws one.
struct FurtherLosses {
  std::vector<std::vector<double>> of_layers;  // [further step][layer]
  // Blocks of ranks and micro-batches whose mean a layer's loss is: in a step of the job, and in
  // one of `of_layers`, which draws fewer micro-batches.
  double blocks_of_step = 1;
  double blocks_drawn = 1;
  double block_variance = 0;  // as RoutingFigures has it, mean over these steps

  std::size_t bytes() const;  // of memory
};

// Draws `steps` of them, on up to `threads` threads. Where each micro-batch has a routing of its
// own, those of a further step are so few that all of them together draw about a quarter of what
// the step of the job does, but at least four blocks each: the mean is the same, and
// `block_variance` says how much wider it spreads. Precondition: a job that check_job() accepts,
// job.routing without a trace. Throws as DrawnLoads. `progress` may be empty. `draws`: what other
// steps share, as DrawnLoads has it.
FurtherLosses further_losses(const TrainingJob& job, int steps, int threads,
                             const DrawProgress& progress = {},
                             routing::DrawCache* draws = nullptr);

}  // namespace moesim::training
