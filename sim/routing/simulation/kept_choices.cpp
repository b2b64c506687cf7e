#include "sim/routing/simulation/kept_choices.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <set>

#include "sim/routing/jobs/group_blocks.hpp"
#include "sim/routing/jobs/shared_scores.hpp"

namespace moesim::routing {

namespace {

using Kind = ScoreSource::Kind;

// Whether an expert is popular by the rank that it is on.
bool speaks_of_ranks(const ScoreSource& scores) {
  return scores.kind == Kind::hot_rank || scores.kind == Kind::spread_heat;
}

// What the best experts of a token depend on.
std::string choices_key(const RoutingJob& job) {
  RoutingJob any = job;
  if (!speaks_of_ranks(job.scores)) any.expert_parallel = 1;
  any.gpus_per_domain = 0;
  any.tokens_per_gpu = 0;
  return any.logits_key();
}

}  // namespace

bool keeps_all_choices(const RoutingJob& job) {
  const RouterConfig& router = job.router;
  return job.fidelity == Fidelity::tokens && router.takes_best() && router.kind->make == nullptr &&
         !router.drops && !router.pads_to_busiest() && router.groups == 1 && !router.fill_in &&
         router.rectification == Rectification::none && !job.count_copies &&
         job.expert_placement == nullptr && job.scores.trace == nullptr && !job.scores.is_ragged();
}

std::vector<std::string> shared_keys(std::span<const RoutingJob> jobs) {
  std::vector<std::string> keys;
  std::set<std::string> with_others;
  for (const RoutingJob& job : jobs) {
    keys.push_back(job.logits_key());
    if (!keeps_all_choices(job)) with_others.insert(keys.back());
  }
  for (std::size_t at = 0; at < jobs.size(); ++at) {
    if (!with_others.contains(keys[at])) keys[at] = "choices of " + choices_key(jobs[at]);
  }
  return keys;
}

void KeptChoices::route(std::span<const RoutingJob> jobs, int replica, int layer,
                        std::span<LayerRouting> results) {
  const RoutingJob& first = jobs.front();
  experts_ = static_cast<std::size_t>(first.experts);
  choices_ = 0;
  std::set<std::int64_t> ends;
  for (std::size_t at = 0; at < jobs.size(); ++at) {
    const RoutingJob& job = jobs[at];
    assert(keeps_all_choices(job));
    choices_ = std::max(choices_, job.router.choices());
    ends.insert(job.tokens_per_gpu);
    results[at] = LayerRouting{};
    results[at].capacity = job.router.capacity(job.tokens_per_gpu, job.experts);
    results[at].ir_rows.resize(static_cast<std::size_t>(job.gpus));
    results[at].demand.resize(experts_);
    results[at].kept_rows.reserve(static_cast<std::size_t>(job.gpus) * experts_);
  }
  ends_.assign(ends.begin(), ends.end());
  tile_.grow(experts_);
  const auto choices = static_cast<std::size_t>(choices_);
  best_.resize(choices * tile_tokens);
  logit_.resize(choices * tile_tokens);
  const LogitSource logits(shared_scores(jobs), logit_shape(first), first.seed,
                           static_cast<std::uint32_t>(replica), static_cast<std::uint32_t>(layer));
  for (int gpu = 0; gpu < first.gpus; ++gpu) count_gpu(jobs, logits, gpu, results);
  for (std::size_t at = 0; at < jobs.size(); ++at) set_largest_kept(jobs[at], results[at]);
}

// Tile by tile: where a job's tokens end, the rows so far are its own.
void KeptChoices::count_gpu(std::span<const RoutingJob> jobs, const LogitSource& logits, int gpu,
                            std::span<LayerRouting> results) {
  rows_.assign(static_cast<std::size_t>(choices_) * experts_, 0);
  auto end = ends_.begin();
  for (std::int64_t tile = 0; end != ends_.end(); tile += tile_tokens) {
    logits.fill_tile(static_cast<std::uint32_t>(gpu), static_cast<std::uint64_t>(tile), kernels_,
                     tile_.data());
    kernels_.largest(tile_.data(), 0, static_cast<int>(experts_), choices_,
                     {best_.data(), logit_.data(), tile_tokens});
    std::int64_t counted = 0;  // of the tile
    for (; end != ends_.end() && *end <= tile + tile_tokens; ++end) {
      count(counted, *end - tile);
      counted = *end - tile;
      add_rows(jobs, *end, results);
    }
    count(counted, tile_tokens);
  }
}

// Adds the choices of tokens [first, last) of the tile.
void KeptChoices::count(std::int64_t first, std::int64_t last) {
  for (std::size_t choice = 0; choice < static_cast<std::size_t>(choices_); ++choice) {
    std::int32_t* const rows = rows_.data() + choice * experts_;
    const std::uint16_t* const expert = best_.data() + choice * tile_tokens;
    for (std::int64_t token = first; token < last; ++token) ++rows[expert[token]];
  }
}

// Appends the rows of a GPU to the jobs of so many tokens.
void KeptChoices::add_rows(std::span<const RoutingJob> jobs, std::int64_t tokens,
                           std::span<LayerRouting> results) const {
  for (std::size_t at = 0; at < jobs.size(); ++at) {
    if (jobs[at].tokens_per_gpu != tokens) continue;
    LayerRouting& result = results[at];
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      std::int32_t rows = 0;
      for (std::size_t choice = 0; choice < static_cast<std::size_t>(jobs[at].router.top_k);
           ++choice) {
        rows += rows_[choice * experts_ + expert];
      }
      result.kept_rows.push_back(rows);
      result.demand[expert] += rows;
    }
  }
}

}  // namespace moesim::routing
