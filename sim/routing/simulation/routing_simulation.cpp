#include "sim/routing/simulation/routing_simulation.hpp"

#include <fmt/format.h>

#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/expert_split.hpp"
#include "sim/routing/groups/check_router.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "sim/routing/scores/score_model.hpp"
#include "sim/routing/simulation/layer_router.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/routing/tokens/choice_table.hpp"

namespace moesim::routing {

namespace {

void check_sizes(const RoutingJob& job) {
  if (job.gpus < 1) throw UsageError(fmt::format("--gpus is {}: at least 1", job.gpus));
  if (job.gpus >= 1 << 24) {
    throw UsageError(fmt::format("--gpus is {}: at most {}", job.gpus, (1 << 24) - 1));
  }
  if (job.expert_parallel < 1) {
    throw UsageError(fmt::format("--expert-parallel is {}: at least 1", job.expert_parallel));
  }
  if (job.expert_parallel > job.gpus || job.gpus % job.expert_parallel != 0) {
    throw UsageError(fmt::format(
        "{} GPUs do not divide into expert-parallel groups of {}: choose --expert-parallel as a "
        "divisor of --gpus",
        job.gpus, job.expert_parallel));
  }
  if (job.experts < 1 || job.experts > max_experts) {
    throw UsageError(fmt::format("--experts is {}: from 1 to {}", job.experts, max_experts));
  }
  check_experts_divide(job.experts, job.expert_parallel, job.gpus);
  if (job.tokens_per_gpu < 1) throw UsageError("there are no tokens: --tokens-per-gpu is below 1");
  const std::int64_t most = most_tokens(job.fidelity) / job.expert_parallel;
  if (job.tokens_per_gpu > most) {
    const bool by_tokens = job.fidelity == Fidelity::tokens;
    throw UsageError(fmt::format(
        "{} tokens per GPU are too many to route at {} level: at most {} with --expert-parallel {}"
        "{}",
        job.tokens_per_gpu, by_tokens ? "token" : "count", most, job.expert_parallel,
        by_tokens && counts_refusal(job).empty() ? "; --fidelity counts takes more" : ""));
  }
  if (job.layers < 1 || job.layers > 65535) {
    throw UsageError(fmt::format("{} MoE layers: from 1 to 65535 can be routed", job.layers));
  }
}

void check_ragged(const RoutingJob& job) {
  if (!job.scores.is_ragged()) return;
  const int ranks = job.expert_parallel;
  if (ranks < 2) {
    throw UsageError(fmt::format(
        "--routing {} is about ranks of one expert-parallel group, and with --expert-parallel 1 "
        "each is alone: raise --expert-parallel",
        job.scores.name()));
  }
  const char* reason = job.router.kind->no_unequal_tokens;
  if (reason == nullptr || !job.is_ragged()) return;
  throw UsageError(
      fmt::format("--routing {}: --router {} {}, but here rank 0 has {} and rank {} has {}: {}",
                  job.scores.name(), job.router.asked_name(), reason, job.tokens_of(0), ranks - 1,
                  job.tokens_of(ranks - 1), job.router.kind->for_unequal_tokens));
}

void check_order(const RoutingJob& job) {
  if (job.expert_placement == nullptr) return;
  check_placement(job.router, *job.expert_placement, job.experts);
  if (job.scores.trace != nullptr && job.scores.trace->per() == Trace::Per::rank) {
    refuse_placement(fmt::format("{} counts rows per GPU, not per expert", job.scores.name()));
  }
}

// The popularity that biases are trained on has to fit the job like one that is routed.
void check_bias_training(const RoutingJob& job) {
  const ExpertBias* const bias = job.router.expert_bias.get();
  if (bias == nullptr || bias->trained_on() == nullptr) return;
  RoutingJob training = job;
  training.scores = *bias->trained_on();
  check_counted_experts(training.scores, job.experts);
  if (training.scores.trace != nullptr) check_trace(training);
}

}  // namespace

void check(const RoutingJob& job) {
  const RouterConfig& router = job.router;
  check_bias_training(job);
  if (router.expert_bias && router.expert_bias->layers() > 1 &&
      router.expert_bias->layers() < job.layers) {
    throw UsageError(fmt::format("--expert-bias: {} has {} layers, and {} are routed",
                                 router.expert_bias->name(), router.expert_bias->layers(),
                                 job.layers));
  }
  if (router.is_dense()) {
    throw UsageError("a dense model routes nothing: choose --router top1, top2, ...");
  }
  check_sizes(job);
  check_ragged(job);
  for (int rank = 0; rank < job.expert_parallel; ++rank) {
    check_router(router, job.experts, job.expert_parallel, job.tokens_of(rank));
  }
  check_order(job);
  if (router.scores_experts()) {
    check_counted_experts(job.scores, job.experts);
    if (job.scores.trace != nullptr) check_trace(job);
  }
  if (job.fidelity != Fidelity::counts) return;
  const std::string refusal = counts_refusal(job);
  if (refusal.empty()) return;
  throw UsageError(fmt::format("--fidelity counts: {}: use --fidelity tokens or auto", refusal));
}

std::vector<ReplicaRouting> simulate_routing(std::span<const RoutingJob> jobs, int replica) {
  if (jobs.empty()) return {};
  const std::string shared = jobs.front().logits_key();
  for (const RoutingJob& job : jobs) {
    check(job);
    if (job.logits_key() != shared) {
      throw UsageError("jobs that are routed together have to share their logits");
    }
  }
  std::vector<ReplicaRouting> results(jobs.size());
  std::vector<LayerRouting> layer_results(jobs.size());
  LayerRouter router;
  for (int layer = 0; layer < jobs.front().layers; ++layer) {
    router.route(jobs, replica, layer, layer_results);
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      results[job].layers.push_back(std::move(layer_results[job]));
    }
  }
  for (ReplicaRouting& result : results) result.loss = mean_loss(result.layers);
  return results;
}

ReplicaRouting simulate_routing(const RoutingJob& job, int replica) {
  return std::move(simulate_routing(std::span<const RoutingJob>(&job, 1), replica).front());
}

std::int64_t slots_per_expert(const RoutingJob& job, const ReplicaRouting& routing) {
  const LayerRouting& first = routing.layers.at(0);
  if (job.router.pads_to_busiest()) {
    std::int64_t most = 0;
    for (const LayerRouting& layer : routing.layers)
      most = std::max(most, layer.exchanged_capacity);
    return most;
  }
  return first.exchanged ? first.capacity : job.router.capacity(job.tokens_per_gpu, job.experts);
}

}  // namespace moesim::routing
