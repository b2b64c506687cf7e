#include "sim/training/drawn/block_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "sim/base/error.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/job/rank_gpus.hpp"

namespace moesim::training {

int drawn_layers(const TrainingJob& job) {
  const bool predicts = job.model->is_moe_prediction();
  return job.model->moe_layers() +
         (predicts ? parallel::stages_of(*job.model, job.layout).mtp() : 0);
}

routing::RoutingJob block_routing(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  const parallel::ParallelLayout& layout = job.layout.sizes;
  routing::RoutingJob made;
  made.router = drawn.router;
  made.scores = drawn.scores;
  made.experts = job.model->moe->experts;
  made.gpus = layout.expert * layout.expert_tensor;
  made.expert_parallel = layout.expert;
  made.slices = layout.expert_tensor;
  made.place(drawn.placement);
  made.gpus_per_domain = static_cast<int>(expert_neighbours(job).size());
  made.tokens_per_gpu = std::llround(job.tokens_per_rank());
  made.layers = drawn_layers(job);
  made.seed = drawn.seed;
  made.fidelity = drawn.fidelity;
  if (made.fidelity == routing::Fidelity::automatic) {
    made.fidelity = routing::counts_refusal(made).empty() ? routing::Fidelity::counts
                                                          : routing::Fidelity::tokens;
  }
  return made;
}

std::vector<int> drawn_replicas(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  const routing::Trace* const trace = drawn.scores.trace.get();
  if (trace == nullptr) return {drawn.replica};
  if (drawn.trace_step > 0) return {drawn.trace_step - 1};
  const int recorded = trace->shape().steps;
  const int taken = drawn.draws == RoutingDraws::per_micro_batch
                        ? job.layout.micro_batches()
                        : std::min(recorded, most_recorded_steps);
  std::vector<int> steps;
  for (int at = 0; at < taken; ++at) {
    steps.push_back(static_cast<int>(std::int64_t{at} * recorded / taken));
  }
  return steps;
}

std::string draw_refusal(const routing::RouterConfig& router) {
  if (router.is_dense()) return "has no experts: choose top1, topk, dropless, ...";
  if (router.mixes_tokens()) {
    return "mixes all tokens of a rank into slots, by products that train does not price";
  }
  if (router.kind->shuffles_tokens) {
    return "exchanges tokens before and after its layer, which train does not price";
  }
  if (router.kind->blocks == routing::ExchangeBlocks::full) {
    return "lets experts choose tokens, by a selection that train does not price";
  }
  if (router.kind->blocks == routing::ExchangeBlocks::pooled) {
    return "sends blocks of different sizes by pool, which train does not price";
  }
  return "";
}

void check_trace_step(const DrawnRouting& drawn) {
  if (drawn.trace_step == 0) return;
  const routing::Trace* const trace = drawn.scores.trace.get();
  if (trace == nullptr) {
    throw UsageError(
        fmt::format("--trace-step: --routing {} has no recorded steps: leave it out, or give "
                    "--routing trace:FILE",
                    drawn.scores.name()));
  }
  const int recorded = trace->shape().steps;
  if (drawn.trace_step <= recorded) return;
  throw UsageError(fmt::format("--trace-step is {}: {} has {} recorded step{}", drawn.trace_step,
                               trace->file(), recorded, recorded == 1 ? "" : "s"));
}

void check_drawn(const DrawnRouting& drawn) {
  if (const std::string why = draw_refusal(drawn.router); !why.empty()) {
    throw UsageError(fmt::format("--router: {} {}", drawn.router.name(), why));
  }
  check_trace_step(drawn);
  if (drawn.scores.is_ragged()) {
    throw UsageError(fmt::format("--routing {}: all ranks of a training step have the same tokens",
                                 drawn.scores.name()));
  }
}

}  // namespace moesim::training
