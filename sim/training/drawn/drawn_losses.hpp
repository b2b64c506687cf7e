#pragma once

#include <span>
#include <vector>

#include "sim/routing/counts/draw_cache.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// What the routing of a job loses, mean over layers that were drawn.
struct ExpectedLoss {
  routing::TokenLoss loss;
  double error = 0;  // standard error of residual_loss, by the spread of the layers' means
};
// The loss of each of these jobs, with one routing of each layer, or those of drawn_replicas() for
// a trace: of `most_layers` layers, evenly spread, where there are more. Jobs with the same logits
// draw them once. `draws`: what other layouts share, as DrawnLoads has it. Precondition:
// job.routing, of each; throws as DrawnLoads.
std::vector<ExpectedLoss> drawn_losses(std::span<const TrainingJob> jobs, int most_layers,
                                       routing::DrawCache* draws = nullptr);

}  // namespace moesim::training
