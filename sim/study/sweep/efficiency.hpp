#pragma once

#include <optional>

#include "sim/scenario/scenario.hpp"
#include "sim/study/sweep/outcome.hpp"

namespace moesim::study {

// The mean step over the replicas, each of which is a step of a run: many steps take as many times
// this, while Outcome::step_ms is that of a typical one.
double mean_step_ms(const Outcome& outcome);

// Experts per token that model FLOPs count: k; of routers whose slots are always full as many as
// there are slots per token (of expert-choice the capacity factor, in the paper's convention); 0 of
// a dense router.
double model_choices(const scenario::Scenario& scenario);

// What a step's speed comes to: FLOPs those of the median step, as Outcome::tokens_per_s_per_gpu;
// totals over a day or many tokens by mean_step_ms(), as losses are means. Model FLOPs are
// Megatron's (model::model_flops()): model_choices() experts per token whatever is dropped, padded
// or rectified, no router, no recomputation; of --mode prefill the forward pass, a third of them.
struct Efficiency {
  double tflops_per_gpu = 0;
  double mfu = 0;  // share of the GPU's dense bf16 peak; above 1 where enough routes are dropped
  // The same with the FLOPs of those routes alone that were kept, without TokenLoss::failed, so
  // before rectification; of routers whose slots are always full all count. None of a dense router.
  std::optional<double> mfu_kept;
  double tokens_per_day = 0;  // of all GPUs
  double gpu_hours_per_1e12_tokens = 0;
};
Efficiency efficiency(const scenario::Scenario& scenario, const Outcome& outcome);

// The memory of a GPU in GiB by what it holds. The six sum to Outcome::memory_gib; columns count
// the keys and values among the activations.
struct MemoryParts {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double kv_cache = 0;  // of prefill
  double buffers = 0;   // of exchanges, one-hot masks of einsum dispatch, workspace
};
MemoryParts memory_parts(const Outcome& outcome);

}  // namespace moesim::study
