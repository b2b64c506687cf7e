#include "sim/training/drawn/rank_capacity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"
#include "sim/model/precision.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/choice_shares.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/job/stage_division.hpp"

namespace moesim::training {
namespace {

// d of CountDistribution: d - d^2 / sum d = the variance of one choice.
std::vector<double> independent_variances(const std::vector<double>& shares) {
  std::vector<double> variances;
  double total = 0;
  for (const double share : shares) {
    variances.push_back(std::max(0.0, share * (1 - share)));
    total += variances.back();
  }
  std::vector<double> found = variances;
  for (int round = 0; round < 50; ++round) {
    double sum = 0;
    for (std::size_t expert = 0; expert < found.size(); ++expert) {
      const double more = total > 0 ? found[expert] * found[expert] / total : 0;
      found[expert] = variances[expert] + more;
      sum += found[expert];
    }
    total = sum;
  }
  return found;
}

constexpr double least_variance = 0.01;  // of a rank's rows

double log_below(double z) { return std::log1p(-0.5 * std::erfc(z * M_SQRT1_2)); }

}  // namespace

RankRowsLaw::RankRowsLaw(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  const routing::RoutingJob asked = block_routing(job);
  if (const std::string refusal = rank_rows_refusal(job); !refusal.empty()) {
    throw UsageError(refusal);
  }
  const parallel::ParallelLayout& layout = job.layout.sizes;
  const int experts = job.model->moe->experts;
  const auto per_rank = static_cast<std::size_t>(experts / layout.expert);
  const double tokens = job.tokens_per_rank() * layout.expert * layout.expert_tensor;
  const StageDivision division = stage_division(layout);
  blocks_ =
      static_cast<double>(job.layout.micro_batches()) * division.sets * division.blocks_per_set;
  most_rows_ = tokens * drawn.router.top_k;
  for (int layer = 0; layer < asked.layers; ++layer) {
    const routing::LogitSource logits(
        drawn.scores,
        {experts, layout.expert, asked.gpus, drawn.placement.get(), drawn.router.top_k}, drawn.seed,
        static_cast<std::uint32_t>(drawn.replica), static_cast<std::uint32_t>(layer));
    const std::vector<double> by_choice =
        routing::choice_shares(logits.offsets(), logits.noise(), drawn.router.top_k);
    std::vector<double> shares(static_cast<std::size_t>(experts), 0);
    for (std::size_t at = 0; at < by_choice.size(); ++at)
      shares[at % shares.size()] += by_choice[at];
    const std::vector<double> own = independent_variances(shares);
    double all = 0;
    for (const double each : own) all += each;
    std::vector<Rank> ranks;
    for (std::size_t first = 0; first < shares.size(); first += per_rank) {
      double share = 0;
      double part = 0;
      for (std::size_t expert = first; expert < first + per_rank; ++expert) {
        share += shares[expert];
        part += own[expert];
      }
      const double variance = all > 0 ? tokens * part * (1 - part / all) : 0;
      // Counts are whole: where every token takes all experts of a rank, or none, rounding is left.
      const double deviation = variance > least_variance ? std::sqrt(variance) : 0;
      ranks.push_back({tokens * share, deviation,
                       deviation > 0 ? (1 - 2 * share / drawn.router.top_k) / deviation : 0});
    }
    layers_.push_back(ranks);
  }
}

double RankRowsLaw::log_fits(const std::vector<Rank>& ranks, double rows) const {
  double sum = 0;
  for (const Rank& rank : ranks) {
    const double room = std::floor(rows) + 0.5 - rank.mean;  // rows are whole
    if (rank.deviation <= 0) {
      if (room < 0) return -INFINITY;
      continue;
    }
    const double z = room / rank.deviation;
    const double near = std::clamp(z, -8.0, 8.0);  // the expansion is about the centre
    sum += log_below(z - rank.skewness * (near * near - 1) / 6);
  }
  return sum;
}

double RankRowsLaw::overflow_chance_of_one(double rows) const {
  double sum = 0;
  for (const std::vector<Rank>& ranks : layers_) sum -= std::expm1(log_fits(ranks, rows));
  return sum / static_cast<double>(layers_.size());
}

double RankRowsLaw::overflow_chance(double rows) const {
  double sum = 0;
  for (const std::vector<Rank>& ranks : layers_) sum += blocks_ * log_fits(ranks, rows);
  return std::abs(std::expm1(sum));  // sum <= 0; and no -0
}

double RankRowsLaw::rows_for(double chance) const {
  double low = 0;
  double high = most_rows_;
  for (int halving = 0; halving < 60; ++halving) {
    const double middle = 0.5 * (low + high);
    (overflow_chance(middle) > chance ? low : high) = middle;
  }
  return std::ceil(high);
}

std::string rank_rows_refusal(const TrainingJob& job) {
  const std::string why = routing::counts_refusal(block_routing(job));
  if (why.empty()) return "";
  return fmt::format(
      "--rank-capacity: the chance that a step overflows is computed from counts that are drawn, "
      "and {}",
      why);
}

double rank_capacity_rows(const TrainingJob& job) {
  const double balance = job.balanced_rows() * job.layout.sizes.expert_tensor;
  const double multiple = model::row_padding(job.states.precision, true);
  return std::ceil(std::floor(balance * job.routing->rank_capacity) / multiple) * multiple;
}

double rank_capacity_load(const TrainingJob& job) {
  return rank_capacity_rows(job) / (job.balanced_rows() * job.layout.sizes.expert_tensor);
}

}  // namespace moesim::training
