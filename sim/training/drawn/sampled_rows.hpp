#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/simulation/layer_router.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// Rows of the ranks of an expert-parallel group for routers whose counts have no known law
// (sinkhorn). A sample of single tokens is routed, in batches; the rows of many more tokens are
// normal with the mean and the covariance of the batches, those of one token times their number.
// Differences of means that the sample is too small to tell from chance are left out: they keep the
// variance that remains.
class SampledRows {
 public:
  // One layer. `block`: a routing of one block of ranks, without capacity, by tokens.
  SampledRows(const routing::RoutingJob& block, int replica, int layer,
              routing::LayerRouter& router);

  const routing::TokenLoss& loss() const { return loss_; }
  // [rank]: rows of `tokens` tokens in draw number `draw`; they sum to tokens x k.
  std::vector<double> draw(double tokens, std::uint32_t draw) const;

 private:
  StreamKey key_;
  routing::TokenLoss loss_;
  std::vector<double> mean_;                    // [rank] of a token
  std::vector<std::vector<float>> deviations_;  // [batch][rank] of a token's, scaled for draw()
};

// Whether the rows of a job come from such a sample: for routers without counts, unless single
// tokens are asked for. Recorded tokens are there anyway; how long the longest block of
// rows of a source is, the rows of ranks do not say. Precondition: job.routing.
bool takes_sample(const TrainingJob& job);

}  // namespace moesim::training
