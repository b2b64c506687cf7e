#pragma once

#include <span>

#include "sim/routing/jobs/layer_routing.hpp"

namespace moesim::routing {

// The mean over layers, all with the same router. No layers: all zero.
TokenLoss mean_loss(std::span<const LayerRouting> layers);
// The mean over replicas. A figure that is absent in the first replica is absent in the mean.
TokenLoss mean_loss(std::span<const TokenLoss> losses);

}  // namespace moesim::routing
