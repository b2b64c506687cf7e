#include "sim/training/drawn/sampled_rows.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::training {
namespace {

// How the sample is divided: into many batches, or into larger ones where tokens are chosen for
// together (sinkhorn balances 64 tokens more than it does thousands).
struct Batches {
  int count = 256;
  std::int64_t tokens = 64;
};

Batches batches_of(const routing::RoutingJob& block) {
  constexpr std::int64_t together = 1024;
  if (!block.router.kind->chooses_together) return {};
  return {32, std::min(together, block.tokens_per_gpu)};
}

}  // namespace

SampledRows::SampledRows(const routing::RoutingJob& block, int replica, int layer,
                         routing::LayerRouter& router)
    : key_{block.seed, Purpose::counts, static_cast<std::uint32_t>(replica),
           static_cast<std::uint32_t>(layer), 0} {
  const int ranks = block.expert_parallel;
  const Batches batches = batches_of(block);
  const auto batch_tokens = static_cast<double>(batches.tokens);
  routing::RoutingJob job = block;
  job.fidelity = routing::Fidelity::tokens;
  job.tokens_per_gpu = batches.tokens;
  job.gpus = (batches.count + ranks - 1) / ranks * ranks;
  routing::LayerRouting routed;
  router.route({&job, 1}, replica, layer, {&routed, 1});
  loss_ = routed.loss;
  const auto size = static_cast<std::size_t>(ranks);
  const auto per_rank = static_cast<std::size_t>(job.experts) / size;
  const double count = job.gpus;
  mean_.assign(size, 0);
  for (int batch = 0; batch < job.gpus; ++batch) {
    const std::int32_t* rows =
        routed.kept_rows.data() + static_cast<std::ptrdiff_t>(batch) * job.experts;
    std::vector<float>& own = deviations_.emplace_back(size, 0.0F);
    for (std::size_t expert = 0; expert < size * per_rank; ++expert) {
      own[expert / per_rank] += static_cast<float>(rows[expert]);
    }
    for (std::size_t rank = 0; rank < size; ++rank) mean_[rank] += own[rank] / count;
  }
  const auto scale = static_cast<float>(1 / std::sqrt((count - 1) * batch_tokens));
  double noise = 0;  // variance of a rank's mean per token, of sampling
  double total = 0;
  for (std::vector<float>& own : deviations_) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      own[rank] = (own[rank] - static_cast<float>(mean_[rank])) * scale;
      noise += own[rank] * own[rank] / (static_cast<double>(size) * count * batch_tokens);
    }
  }
  for (double& mean : mean_) total += mean /= batch_tokens;
  const double even = total / static_cast<double>(size);
  double spread = 0;
  for (const double mean : mean_) spread += (mean - even) * (mean - even);
  spread /= std::max(1.0, static_cast<double>(size) - 1);
  const double kept = spread > 0 ? std::sqrt(std::max(0.0, spread - noise) / spread) : 0;
  for (double& mean : mean_) mean = even + kept * (mean - even);
}

std::vector<double> SampledRows::draw(double tokens, std::uint32_t draw) const {
  StreamKey key = key_;
  key.rank = draw;
  Stream stream(key);
  std::vector<float> sum(mean_.size(), 0.0F);
  for (const std::vector<float>& own : deviations_) {
    const auto weight = static_cast<float>(stream.normal());
    for (std::size_t rank = 0; rank < sum.size(); ++rank) sum[rank] += weight * own[rank];
  }
  std::vector<double> rows;
  for (std::size_t rank = 0; rank < sum.size(); ++rank) {
    rows.push_back(std::max(0.0, tokens * mean_[rank] + std::sqrt(tokens) * sum[rank]));
  }
  return rows;
}

bool takes_sample(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  const routing::RouterConfig& router = drawn.router;
  return job.redundant_experts == 0 && drawn.fidelity == routing::Fidelity::automatic &&
         router.kind->no_counts != nullptr && router.chooses_top_k() && !router.has_capacity() &&
         !router.kind->skips_exchange && !router.pads_exchange() && drawn.scores.trace == nullptr &&
         router.rectification == routing::Rectification::none;
}

}  // namespace moesim::training
