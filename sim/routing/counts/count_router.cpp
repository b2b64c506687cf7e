#include "sim/routing/counts/count_router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/routing/counts/count_distribution.hpp"
#include "sim/routing/counts/count_growth.hpp"
#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/jobs/group_blocks.hpp"
#include "sim/routing/jobs/shared_scores.hpp"

namespace moesim::routing {

namespace {

double sum_of(const std::vector<std::int64_t>& values) {
  return static_cast<double>(std::accumulate(values.begin(), values.end(), std::int64_t{0}));
}

bool count_alike(const RouterConfig& one, const RouterConfig& other) {
  if (one.has_gate() && other.has_gate()) {
    return one.top_k == other.top_k && one.fill_in == other.fill_in;
  }
  return one.name() == other.name();
}

// Each token has one expert with g = 1: a failed route loses all of its mass.
void set_losses_of_drawn(double tokens, double kept, double slots, TokenLoss& loss) {
  loss.failed = 1 - kept / tokens;
  loss.padded = share(slots - kept, slots);
  loss.partial = loss.lost_mass = loss.unrouted = loss.residual_loss = loss.failed;
}

// Which tokens lose a route, and where rectified ones go, is known of tokens alone.
bool needs_tokens(const RoutingJob& job) {
  const bool rectifies = job.router.rectification != Rectification::none;
  return job.router.has_gate() && job.router.drops && (job.with_losses || rectifies) &&
         !is_sampled(job);
}

}  // namespace

void CountRouter::prepare(std::span<const RoutingJob> jobs, int replica, int layer) {
  job_ = jobs.front();
  key_ = {job_.seed, Purpose::counts, static_cast<std::uint32_t>(replica),
          static_cast<std::uint32_t>(layer), 0};
  no_offsets_.assign(static_cast<std::size_t>(job_.experts), 0.0F);
  shares_.clear();
  counts_.clear();
  counts_.reserve(jobs.size());
  has_pilot_ = std::any_of(jobs.begin(), jobs.end(), needs_tokens);
  if (std::none_of(jobs.begin(), jobs.end(),
                   [](const RoutingJob& job) { return job.router.has_gate(); })) {
    return;
  }
  logits_ = std::make_unique<LogitSource>(shared_scores(jobs), logit_shape(job_), job_.seed,
                                          key_.replica, key_.layer);
  noise_ = logits_->noise();
  offsets_ = logits_->offsets();
  if (!has_pilot_) return;
  StreamKey chance = key_;
  chance.rank = chance_plane;
  pilot_.draw(jobs, *logits_, chance, draws_ == nullptr ? nullptr : &draws_->pilots);
}

void CountRouter::route(std::span<const RoutingJob> jobs, int replica, int layer,
                        std::span<LayerRouting> results) {
  prepare(jobs, replica, layer);
  for (std::size_t job = 0; job < jobs.size(); ++job) settle(jobs[job], results[job]);
}

void CountRouter::route_counts(std::span<const RoutingJob> jobs, int replica, int layer,
                               std::span<const std::int32_t> primary,
                               std::span<LayerRouting> results) {
  prepare(jobs, replica, layer);
  for (const bool fill_in : {false, true}) {
    RouterConfig router = jobs.front().router;
    router.fill_in = fill_in;
    const bool wanted = std::any_of(jobs.begin(), jobs.end(), [&](const RoutingJob& job) {
      return job.router.fill_in == fill_in;
    });
    if (!wanted) continue;
    Counts& counts = add_counts(router);
    counts.primary.assign(primary.begin(), primary.end());
    draw_counts(counts, true);
  }
  for (std::size_t job = 0; job < jobs.size(); ++job) settle(jobs[job], results[job]);
}

// The shares for k', not for the largest k' of all jobs: the result of a job must not depend on the
// others.
const std::vector<double>& CountRouter::shares_of(int choices) {
  std::vector<double>& shares = shares_[choices];
  if (!shares.empty()) return shares;
  shares = drawn_shares(choices);
  if (!has_pilot_) return shares;
  std::vector<double> popularity(offsets_.size(), 0.0);
  for (std::size_t at = 0; at < shares.size(); ++at) {
    popularity[at % offsets_.size()] += shares[at];
  }
  pilot_.set_popularity(choices, popularity);
  return shares;
}

// 16 rows of standard normals from row `first` of a plane: [expert][16].
void CountRouter::normals(std::uint32_t plane, std::uint64_t first, float* tile) const {
  StreamKey key = key_;
  key.rank = plane;
  kernels_.gaussian({philox_words(key), first}, job_.experts, no_offsets_.data(), tile);
}

CountRouter::Counts& CountRouter::counts_of(const RoutingJob& job) {
  if (!is_sampled(job)) return counts_of(job.router);
  const std::string key = sampled_key(job);
  for (Counts& counts : counts_) {
    if (counts.key == key) return counts;
  }
  Counts& counts = counts_.emplace_back();
  counts.router = job.router;
  counts.key = key;
  draw_sampled(job, counts);
  return counts;
}

CountRouter::Counts& CountRouter::counts_of(const RouterConfig& router) {
  for (Counts& counts : counts_) {
    if (counts.key.empty() && count_alike(counts.router, router)) return counts;
  }
  Counts& counts = add_counts(router);
  if (router.kind->make_counter != nullptr) {
    count_exactly(counts);
  } else {
    take_counts(counts);
  }
  return counts;
}

CountRouter::Counts& CountRouter::add_counts(const RouterConfig& router) {
  Counts& counts = counts_.emplace_back();
  counts.router = router;
  counts.top_k = router.top_k;
  counts.fill_in = router.fill_in;
  if (router.has_gate()) {
    counts.shares = shares_of(router.choices()).data();
  } else {
    // Exact counts are of one choice: nothing asks for their shares.
    counts.drawn = router.kind->expert_shares != nullptr
                       ? router.kind->expert_shares(router, job_.experts, key_.layer)
                       : std::vector<double>(no_offsets_.size(), 0.0);
    counts.shares = counts.drawn.data();
  }
  return counts;
}

// The exact counts of the tokens, where the router can compute them without tokens.
void CountRouter::count_exactly(Counts& counts) {
  const auto experts = static_cast<std::size_t>(job_.experts);
  std::unique_ptr<ExactCounter>& counter =
      counters_[fmt::format("{} {}", counts.router.name(), job_.experts)];
  if (counter == nullptr) counter = counts.router.kind->make_counter(counts.router, job_.experts);
  counts.primary.resize(static_cast<std::size_t>(job_.gpus) * experts);
  StreamKey key = key_;
  for (int gpu = 0; gpu < job_.gpus; ++gpu) {
    key.rank = static_cast<std::uint32_t>(gpu);
    counter->count(
        key, job_.tokens_per_gpu,
        std::span(counts.primary).subspan(static_cast<std::size_t>(gpu) * experts, experts));
  }
}

// A nominee is never a primary choice of its token: cov(primary, nominee) = -S s_primary s_nominee.
void CountRouter::draw_counts(Counts& counts, bool primary_given) const {
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto gpus = static_cast<std::size_t>(job_.gpus);
  std::vector<double> primary(experts, 0.0);
  const auto top_k = static_cast<std::size_t>(counts.top_k);
  for (std::size_t at = 0; at < top_k * experts; ++at) primary[at % experts] += counts.shares[at];
  const CountDistribution primary_counts(primary, job_.tokens_per_gpu, counts.top_k, level_);
  std::vector<double> nominee(experts, 0.0);
  std::vector<float> like(experts, 0.0F), unlike(experts, 1.0F);
  if (counts.fill_in) {
    std::copy_n(counts.shares + top_k * experts, experts, nominee.begin());
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const double p = primary[expert];
      const double q = nominee[expert];
      const double spread = std::sqrt(p * (1 - p) * q * (1 - q));
      const double correlation = spread > 1e-12 ? std::max(-1.0, -p * q / spread) : 0.0;
      like[expert] = static_cast<float>(correlation);
      unlike[expert] = static_cast<float>(std::sqrt(1 - correlation * correlation));
    }
    counts.nominees.resize(gpus * experts);
  }
  if (!primary_given) counts.primary.resize(gpus * experts);
  const CountDistribution nominee_counts(counts.fill_in ? nominee : primary, job_.tokens_per_gpu,
                                         counts.fill_in ? 1 : counts.top_k, level_);
  std::vector<float> z(experts * tile_tokens), other(experts * tile_tokens);
  std::vector<std::int32_t> scrap(experts * tile_tokens);
  for (std::size_t gpu = 0; gpu < gpus; gpu += tile_tokens) {
    const int here = static_cast<int>(std::min<std::size_t>(tile_tokens, gpus - gpu));
    normals(primary_plane, gpu, z.data());
    primary_counts.draw(z.data(), here,
                        primary_given ? scrap.data() : counts.primary.data() + gpu * experts);
    if (!counts.fill_in) continue;
    normals(nominee_plane, gpu, other.data());
    for (std::size_t at = 0; at < experts * tile_tokens; ++at) {
      const std::size_t expert = at / tile_tokens;
      other[at] = like[expert] * z[at] + unlike[expert] * other[at];
    }
    nominee_counts.draw(other.data(), here, counts.nominees.data() + gpu * experts);
  }
}

// Given the number of routes of a GPU to an expert, each of them is choice c of its token with
// probability share(c, e) / sum of shares: a multinomial distribution, drawn choice by choice.
void CountRouter::draw_split(const Counts& counts, CapacityScope scope,
                             std::vector<std::int32_t>& split) const {
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto top_k = static_cast<std::size_t>(counts.top_k);
  const std::size_t choices = top_k + (counts.fill_in ? 1 : 0);
  const std::size_t ranks =
      scope == CapacityScope::source ? 1 : static_cast<std::size_t>(job_.expert_parallel);
  const std::size_t domains = static_cast<std::size_t>(job_.gpus) / ranks;
  const std::size_t blocks = pilot_.blocks();
  split.assign(blocks * choices * experts, 0);
  for (std::size_t block = 0; block < blocks; ++block) {
    // Blocks are ordered by rank: a stride combines every rank with GPUs from the whole range.
    const std::size_t domain =
        domains >= blocks ? block * domains / blocks : (block * 7 + block / domains) % domains;
    std::int32_t* last = split.data() + (block * choices + top_k - 1) * experts;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t row = (domain * ranks + rank) * experts;
      for (std::size_t expert = 0; expert < experts; ++expert) {
        last[expert] += counts.primary[row + expert];
        if (counts.fill_in) last[experts + expert] += counts.nominees[row + expert];
      }
    }
  }
  std::vector<double> left(experts, 0.0);
  for (std::size_t at = 0; at < top_k * experts; ++at) left[at % experts] += counts.shares[at];
  std::vector<float> z(experts * tile_tokens);
  for (std::size_t choice = 0; choice + 1 < top_k; ++choice) {
    std::vector<BinomialQuantiles> quantiles;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      quantiles.emplace_back(
          std::min(1.0, share(counts.shares[choice * experts + expert], left[expert])));
    }
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t lane = block % tile_tokens;
      const auto plane = static_cast<std::uint32_t>(split_plane + choice);
      if (lane == 0) normals(plane, block, z.data());
      std::int32_t* here = split.data() + (block * choices + choice) * experts;
      std::int32_t* last = split.data() + (block * choices + top_k - 1) * experts;
      for (std::size_t expert = 0; expert < experts; ++expert) {
        here[expert] =
            quantiles[expert].at(last[expert], static_cast<double>(z[expert * tile_tokens + lane]));
        last[expert] -= here[expert];
      }
    }
    for (std::size_t expert = 0; expert < experts; ++expert) {
      left[expert] -= counts.shares[choice * experts + expert];
    }
  }
}

void CountRouter::settle(const RoutingJob& job, LayerRouting& result) {
  const auto experts = static_cast<std::size_t>(job.experts);
  const auto gpus = static_cast<std::size_t>(job.gpus);
  const Counts& counts = counts_of(job);
  result = LayerRouting{};
  result.capacity = job.router.capacity(job.tokens_per_gpu, job.experts);
  result.exchanged_capacity = result.capacity;
  result.kept_rows.resize(gpus * experts);
  result.ir_rows.resize(gpus);
  result.demand.resize(experts);
  for (std::size_t at = 0; at < gpus * experts; at += experts) {
    for (std::size_t expert = 0; expert < experts; ++expert) {
      result.demand[expert] += counts.primary[at + expert];
    }
  }
  if (!job.router.drops) {
    result.kept_rows = counts.primary;
    result.exchanged_capacity = *std::max_element(result.kept_rows.begin(), result.kept_rows.end());
    result.loss = counts.loss;
    result.copies = counts.copies;
    if (job.router.pads_to_busiest()) pad_to_busiest(job, result);
    return;
  }
  kept_.primary.assign(gpus, 0);
  kept_.filled.assign(gpus, 0);
  if (job.router.capacity_scope == CapacityScope::source) {
    keep_by_source(counts, result.capacity, result);
  } else {
    keep_by_group(job.router, counts, result.capacity, result);
  }
  if (job.count_copies) count_copies(job, result);
  set_losses(job, result);
}

void CountRouter::set_losses(const RoutingJob& job, LayerRouting& result) {
  const RouterConfig& router = job.router;
  const double tokens = static_cast<double>(job.tokens_per_gpu) * job.gpus;
  const double slots = static_cast<double>(result.capacity) * job.gpus * job.experts;
  if (!router.has_gate()) {
    return set_losses_of_drawn(tokens, sum_of(kept_.primary), slots, result.loss);
  }
  const double routes = tokens * router.top_k;
  const double kept_primary = sum_of(kept_.primary);
  const double filled = sum_of(kept_.filled);
  TokenLoss& loss = result.loss;
  loss.failed = 1 - kept_primary / routes;
  loss.padded = share(slots - kept_primary - filled, slots);
  double attempted = loss.failed;
  if (router.fill_in) {
    loss.fill_failed = 1 - filled / tokens;
    attempted = 1 - (kept_primary + filled) / (routes + tokens);
    loss.failed_attempted = attempted;
  }
  if (is_sampled(job)) return set_losses_of_sample(job, result);
  if (!needs_tokens(job)) return;
  const std::int64_t ranks =
      router.capacity_scope == CapacityScope::source ? 1 : job.expert_parallel;
  fill_queues(router, result.capacity * ranks, split_of(counts_of(router), router.capacity_scope));
  const PilotLoss pilot = pilot_.judge(router, queues_);
  // The pilot's sampling error is mainly in the number of failed routes, which the counts give
  // exactly.
  const auto scaled = [](double found, double pilot_failed, double failed) {
    return pilot_failed > 0 ? std::min(1.0, found * failed / pilot_failed) : failed;
  };
  loss.partial = fit_growth(false, pilot.failed, pilot.partial, router.top_k)(loss.failed);
  loss.lost_mass = scaled(pilot.lost_mass, pilot.failed, loss.failed);
  const double pilot_attempted = router.fill_in ? pilot.attempted : pilot.failed;
  loss.residual_loss = scaled(pilot.residual, pilot_attempted, attempted);
  if (router.rectification == Rectification::none) {
    loss.unrouted = fit_growth(true, pilot_attempted, pilot.unrouted, router.choices())(attempted);
    return;
  }
  loss.unrouted = pilot.unrouted;
  loss.duplicate_ir = scaled(pilot.duplicate_ir, pilot_attempted, attempted);
  set_ir_rows(job, pilot, result);
}

}  // namespace moesim::routing
