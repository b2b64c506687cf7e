#include "sim/routing/simulation/weight_range.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/routing/jobs/shared_scores.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {
namespace {

constexpr int most_layers = 2;
constexpr std::int64_t most_logits = std::int64_t{1} << 24;

// One group of the job, of few enough logits, whose experts are where they are placed.
RoutingJob sample_of(const RoutingJob& job) {
  RoutingJob sample = job;
  sample.gpus = job.expert_parallel;
  sample.layers = std::min(job.layers, most_layers);
  const std::int64_t of_token = std::int64_t{1} * sample.gpus * sample.layers * sample.experts;
  const std::int64_t whole = std::max<std::int64_t>(tile_tokens, most_logits / of_token);
  sample.tokens_per_gpu = std::min(job.tokens_per_gpu, whole / tile_tokens * tile_tokens);
  sample.fidelity = Fidelity::tokens;
  sample.count_copies = false;
  sample.with_losses = true;
  sample.expert_placement = nullptr;
  return sample;
}

// [rank, layer, token, expert]
std::vector<float> logits_of(const RoutingJob& job, const RoutingJob& sample, int replica) {
  LogitShape shape = logit_shape(job);
  shape.gpus = sample.gpus;
  const ScoreSource scores = shared_scores({&job, 1});
  std::vector<LogitSource> layers;
  for (int layer = 0; layer < sample.layers; ++layer) {
    layers.emplace_back(scores, shape, job.seed, static_cast<std::uint32_t>(replica),
                        static_cast<std::uint32_t>(layer));
  }
  const TileKernels& kernels = tile_kernels(best_simd_level());
  std::vector<float> logits;
  for (int rank = 0; rank < sample.gpus; ++rank) {
    for (const LogitSource& layer : layers) {
      const std::vector<float> of_rank =
          layer.rank_logits(static_cast<std::uint32_t>(rank), sample.tokens_per_gpu, kernels);
      logits.insert(logits.end(), of_rank.begin(), of_rank.end());
    }
  }
  return logits;
}

double loss_of(RoutingJob sample, std::vector<float> logits, double factor) {
  for (float& each : logits) each *= static_cast<float>(factor);
  const TraceShape shape{
      1, sample.gpus, sample.layers, sample.tokens_per_gpu, sample.experts, sample.router.top_k};
  sample.scores = ScoreSource{};
  sample.scores.kind = ScoreSource::Kind::trace;
  sample.scores.trace = Trace::of_logits("drawn weights", shape, std::move(logits));
  return simulate_routing(sample, 0).loss.residual_loss;
}

}  // namespace

WeightRange weight_range(const RoutingJob& job, int replica, double factor) {
  const RoutingJob sample = sample_of(job);
  const std::vector<float> logits = logits_of(job, sample, replica);
  const double taken = loss_of(sample, logits, 1);
  if (taken <= 0) return {};
  return {loss_of(sample, logits, factor) / taken, loss_of(sample, logits, 1 / factor) / taken};
}

}  // namespace moesim::routing
