#include "sim/study/sweep/efficiency.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "sim/model/training_work.hpp"

namespace moesim::study {

double mean_step_ms(const Outcome& outcome) {
  const std::vector<double>& steps = outcome.replica_step_ms;
  if (steps.empty()) return outcome.step_ms;
  return std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
}

double model_choices(const scenario::Scenario& scenario) {
  const routing::RouterConfig& router = scenario.router;
  if (!scenario.has_moe()) return 0;
  if (router.kind->blocks != routing::ExchangeBlocks::full) return router.top_k;
  const std::int64_t slots =
      router.capacity(scenario.tokens_per_gpu, scenario.experts) * scenario.experts;
  return static_cast<double>(slots) / static_cast<double>(scenario.tokens_per_gpu);
}

namespace {

// Model FLOPs of a token, forward and backward, that `choices` experts process in each MoE layer.
double token_flops(const scenario::Scenario& scenario, double choices) {
  const auto length = static_cast<double>(scenario.sequence_length);
  return model::model_flops(*scenario.model, length, choices, 0).total;
}

// Of model_choices() those whose routes were kept.
double kept_choices(const scenario::Scenario& scenario, const Outcome& outcome) {
  constexpr double least = 1e-9;  // none would stand for the dense model
  const bool is_full = scenario.router.kind->blocks == routing::ExchangeBlocks::full;
  return std::max(model_choices(scenario) * (is_full ? 1 : 1 - outcome.loss.failed), least);
}

}  // namespace

Efficiency efficiency(const scenario::Scenario& scenario, const Outcome& outcome) {
  constexpr double seconds_per_hour = 3600;
  const double trained = token_flops(scenario, model_choices(scenario));
  const double per_token = scenario.mode == scenario::Mode::train ? trained : trained / 3;
  const double flops = outcome.tokens_per_s_per_gpu * per_token;
  Efficiency result;
  result.tflops_per_gpu = flops * 1e-12;
  result.mfu = flops / scenario.profile->device().peak_bf16_flops;
  if (scenario.has_moe()) {
    result.mfu_kept =
        result.mfu * (token_flops(scenario, kept_choices(scenario, outcome)) / trained);
  }
  const double in_long_run = outcome.tokens_per_s_per_gpu * outcome.step_ms / mean_step_ms(outcome);
  result.tokens_per_day = in_long_run * scenario.gpus * 24 * seconds_per_hour;
  result.gpu_hours_per_1e12_tokens = 1e12 / in_long_run / seconds_per_hour;
  return result;
}

MemoryParts memory_parts(const Outcome& outcome) {
  MemoryParts parts;
  for (const auto& [name, gib] : outcome.memory_parts_gib) {
    double& part = name == "parameters"    ? parts.parameters
                   : name == "gradients"   ? parts.gradients
                   : name == "optimizer"   ? parts.optimizer
                   : name == "activations" ? parts.activations
                   : name == "kv_cache"    ? parts.kv_cache
                                           : parts.buffers;
    part += gib;
  }
  return parts;
}

}  // namespace moesim::study
