#include "sim/training/prices/linear_attention_prices.hpp"

#include <algorithm>

#include "sim/model/linear_attention.hpp"

namespace moesim::training {
namespace {

using profile::MemoryKernel;

// The share of the bf16 peak that the products of the delta rule run at: tiles of 64 rows, a few
// warps each. Assumed.
constexpr double product_share = 0.25;
// What a chunk of a sequence takes before the next one can begin, however few heads a rank has:
// loads, two small products that wait for each other, stores. Assumed. Backward the states are
// computed again, then their gradients, from the last chunk to the first.
constexpr double chunk_us = 2;

// The kernels of the delta rule hand tensors on through memory, and none of them overlaps much of
// its own reads with its products: the sum of both.
double delta_rule_us(const TrainingJob& job, const KernelPrices& kernels, bool backward) {
  const model::LinearAttention& linear = *job.model->linear;
  const model::KernelWork work = model::delta_rule_work(linear, backward);
  // Tensor and context ranks divide the heads, each with whole sequences of its own.
  const double tokens = job.tokens() / job.layout.sizes.tensor;
  const double peak = job.profile->device().peak_bf16_flops;
  const double products_us = tokens * work.flops / (product_share * peak) * 1e6;
  const double chunks = static_cast<double>(job.layout.sequence_length) /
                        static_cast<double>(model::delta_rule_chunk);
  return std::max(products_us + kernels.memory_us(tokens * work.bytes, MemoryKernel::streaming),
                  (backward ? 2 : 1) * chunk_us * chunks);
}

}  // namespace

Passes linear_attention_passes(const TrainingJob& job, const KernelPrices& kernels) {
  const double tokens = job.tokens() / job.layout.sizes.tensor;
  const auto all_us = [&](bool backward) {
    const model::LinearAttention& linear = *job.model->linear;
    double beside = model::bytes_beside_delta_rule(linear, backward);
    if (job.layout.sizes.context > 1) {
      beside += model::bytes_between_context_ranks(linear, backward);
    }
    return delta_rule_us(job, kernels, backward) +
           kernels.memory_us(tokens * beside, MemoryKernel::streaming);
  };
  Passes passes;
  passes.forward[at(TrainingPart::attention)] = all_us(false);
  passes.input_gradient[at(TrainingPart::attention)] = all_us(true);
  return passes;
}

}  // namespace moesim::training
