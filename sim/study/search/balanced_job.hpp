#pragma once

#include "sim/routing/rules/token_loss.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/layer_prices.hpp"

namespace moesim::study {

// A job without draws in the place of one with drawn routing, for bounds of its step and memory. A
// job without routing stays as it is.
struct BalancedJob {
  explicit BalancedJob(const training::TrainingJob& asked);

  // Rows of the busiest rank over balance, at least. `loss`: of the routing. Precondition:
  // job.routing.
  training::MoeLoad least_load(const routing::TokenLoss& loss) const;

  training::TrainingJob job;
  // It takes the same time and memory; else its loads are what the drawn ones are at least, where
  // that is known without a draw.
  bool is_exact = true;
  double padded = 0;  // rows over balance of blocks that are padded to a capacity; 0: not padded
};

}  // namespace moesim::study
