#pragma once

#include "sim/training/prices/kernel_prices.hpp"
#include "sim/training/prices/passes.hpp"

namespace moesim::training {

// What stands in the place of core attention in a layer with linear attention, for one micro-batch
// on one tensor rank: the convolution, the gated delta rule, what is done around it. No curve is of
// these kernels and no step of a model with them was measured: FLOPs and bytes are counted
// (model::LinearAttention), how fast they go is assumed. Precondition: the model has them.
Passes linear_attention_passes(const TrainingJob& job, const KernelPrices& kernels);

}  // namespace moesim::training
