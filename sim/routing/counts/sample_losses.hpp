#pragma once

#include <cstdint>

#include "sim/base/random.hpp"
#include "sim/routing/rules/layer_sample.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// Tokens of a layer that chose by the router's rule, with their scores, and the tokens S of a GPU.
struct SampledTokens {
  const RouterConfig& router;  // a capacity of each source, no rectification
  const LayerSample& sample;
  int experts = 0;
  std::int64_t tokens_per_gpu = 0;
};

// The losses of the sample where it is routed as whole GPUs of S tokens, in turn from its first
// token on: as many as it has, at least one, which then has tokens of it more than once. `random`:
// the stream of Priority::random.
TokenLoss losses_of_sample(const SampledTokens& of, StreamKey random, const TileKernels& kernels);

}  // namespace moesim::routing
