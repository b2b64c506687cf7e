#include "sim/study/search/drawn_routings.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "sim/base/parallel.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/job/stage_division.hpp"

namespace moesim::study {

using training::ExpectedLoss;
using training::TrainingJob;

namespace {

constexpr int group_ranks = 8;
constexpr int rectified_layers = 8;

bool drops(const TrainingJob& job) { return job.routing && job.routing->router.drops; }
bool rectifies(const TrainingJob& job) {
  return job.routing->router.rectification != routing::Rectification::none;
}
int most_layers(const TrainingJob& job) {
  return rectifies(job) ? rectified_layers : std::numeric_limits<int>::max();
}

int ranks_of(const TrainingJob& job) {
  // Recorded ranks are as many as they are.
  if (rectifies(job) || job.routing->scores.trace) return job.layout.sizes.expert;
  int ranks = group_ranks;
  while (job.model->moe->experts % ranks != 0) ranks /= 2;
  return ranks;
}

// That is drawn in the place of the one asked for.
TrainingJob loss_job(const TrainingJob& asked) {
  TrainingJob job = asked;
  const bool is_recorded = asked.routing->scores.trace != nullptr;
  const int gpus = is_recorded ? training::stage_ranks(asked.layout.sizes) : ranks_of(asked);
  job.layout = {};
  job.layout.sizes.gpus = gpus;
  job.layout.sizes.expert = ranks_of(asked);
  job.layout.sequence_length = std::llround(asked.tokens_per_rank());
  job.layout.global_batch = gpus;
  job.routing->draws = training::RoutingDraws::per_layer;
  return job;
}

bool is_counted(const TrainingJob& job) {
  return training::block_routing(job).fidelity == routing::Fidelity::counts;
}

// Padded blocks are as long whatever they keep, and groups that share slots without rectification
// are drawn as one (DrawnLoads).
bool has_fast_least(const TrainingJob& job) {
  const routing::RouterConfig& router = job.routing->router;
  return rectifies(job) && router.drops && !router.pads_exchange() &&
         router.capacity_scope == routing::CapacityScope::source && is_counted(job);
}

}  // namespace

DrawnRoutings::Place DrawnRoutings::place_of(const TrainingJob& job) {
  return {std::llround(job.tokens_per_rank()), ranks_of(job)};
}

// Jobs of other layouts have the same loss where what is drawn in their place is the same.
DrawnRoutings::LossKey DrawnRoutings::loss_key(const TrainingJob& job) {
  return {place_of(job), training::drawn_key(loss_job(job))};
}

void DrawnRoutings::draw_losses(const std::vector<const TrainingJob*>& asked, int jobs,
                                const std::function<void(std::size_t)>& progress) {
  struct Together {
    std::vector<DrawnLoss*> losses;
    std::vector<TrainingJob> jobs;
    int layers = 0;
  };
  std::map<std::pair<Place, int>, Together> found;
  std::set<const DrawnLoss*> wanted;
  for (const TrainingJob* one : asked) {
    if (!drops(*one)) continue;
    const auto loss = losses_.try_emplace(loss_key(*one)).first;
    if (loss->second.is_drawn || !wanted.insert(&loss->second).second) continue;
    const int layers = most_layers(*one);
    Together& together = found[{place_of(*one), layers}];
    together.losses.push_back(&loss->second);
    together.jobs.push_back(loss_job(*one));
    together.layers = layers;
  }
  std::vector<Together*> draws;
  for (auto& [place, together] : found) draws.push_back(&together);
  parallel_for(draws.size(), jobs, [&](std::size_t at) {
    const Together& draw = *draws[at];
    const std::vector<ExpectedLoss> drawn =
        training::drawn_losses(draw.jobs, draw.layers, &shared_.draws());
    for (std::size_t one = 0; one < drawn.size(); ++one) *draw.losses[one] = {drawn[one], true};
    if (progress) progress(draws.size());
  });
}

const ExpectedLoss& DrawnRoutings::loss(const TrainingJob& job) const {
  if (!drops(job)) return nothing_;
  const auto found = losses_.find(loss_key(job));
  return found == losses_.end() ? nothing_ : found->second.loss;
}

bool DrawnRoutings::knows_loss(const TrainingJob& job) const {
  if (!drops(job)) return true;
  const auto found = losses_.find(loss_key(job));
  return found != losses_.end() && found->second.is_drawn;
}

DrawnRoutings::Least DrawnRoutings::least(const TrainingJob& job) {
  if (!has_fast_least(job)) return {rows(job), true};
  TrainingJob kept = job;
  kept.routing->router.rectification = routing::Rectification::none;
  return {rows(kept), false};
}

}  // namespace moesim::study
