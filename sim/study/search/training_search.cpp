#include "sim/study/search/training_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <tuple>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/parallel.hpp"
#include "sim/study/search/best_first.hpp"
#include "sim/training/step_bound.hpp"

namespace moesim::study {
namespace {

using training::TrainingJob;
using training::TrainingStep;

struct Bound {
  double step_us = 0;
  Bytes memory;
};

struct Candidate {
  const TrainingJob* job = nullptr;
  Bound bound;
  double loss = 0;
};

// The bounds of all jobs of a family. Layers are priced only where one of them may fit.
struct FamilyBounds {
  std::vector<Bound> bounds;
  bool priced = false;
};

FamilyBounds bounds_of(const TrainingFamily& family, double room) {
  FamilyBounds found;
  const TrainingJob& first = family.jobs.front();
  bool fits = false;
  for (const TrainingJob& job : family.jobs) {
    found.bounds.push_back({0, training::memory_bound(job)});
    fits |= static_cast<double>(found.bounds.back().memory.count) <= room;
  }
  if (!fits) return found;
  const training::LayerPrices prices(first);
  found.priced = true;
  for (std::size_t at = 0; at < family.jobs.size(); ++at) {
    if (static_cast<double>(found.bounds[at].memory.count) > room) continue;
    found.bounds[at].step_us = training::step_bound_us(family.jobs[at], prices);
  }
  return found;
}

double room_of(const TrainingSearch& search) {
  const Bytes memory = search.space.base.profile->device().hbm_bytes;
  return search.memory_share * static_cast<double>(memory.count);
}

TrainingCandidates possible_jobs(const TrainingSpace& space) {
  TrainingCandidates possible = candidates_of(space);
  if (possible.count > 0) return possible;
  throw UsageError(fmt::format("none of the {} layouts asked for is possible{}{}",
                               possible.combinations, possible.a_refusal.empty() ? "" : ": ",
                               possible.a_refusal));
}

class Search {
 public:
  explicit Search(const TrainingSearch& search)
      : search_(search), room_(room_of(search)), possible_(possible_jobs(search.space)) {}

  TrainingFound run() {
    bound_all();
    BestFirst order;
    for (const Candidate& candidate : candidates_) {
      order.bounds.push_back(candidate.bound.step_us);
    }
    order.jobs = search_.jobs;
    order.value = [&](std::size_t at) { return step_us(candidates_[at]); };
    order.accept = [&](std::size_t at, double) { return accept(candidates_[at]); };
    const BestFirstCounts counts = run_best_first(order);
    found_.counts.simulated = counts.valued - skipped_;
    found_.counts.violations = counts.violations;
    if (any_fits_) found_.smallest.reset();
    return std::move(found_);
  }

 private:
  void bound_all() {
    std::vector<FamilyBounds> bounds(possible_.families.size());
    parallel_for(bounds.size(), search_.jobs,
                 [&](std::size_t at) { bounds[at] = bounds_of(possible_.families[at], room_); });
    SearchCounts& counts = found_.counts;
    counts.combinations = possible_.combinations;
    counts.refused = possible_.refused;
    counts.candidates = possible_.count;
    for (std::size_t at = 0; at < bounds.size(); ++at) {
      const TrainingFamily& family = possible_.families[at];
      counts.priced += bounds[at].priced ? 1 : 0;
      // What is lost depends on nothing that jobs of a family differ in.
      const double loss = search_.loss ? search_.loss(family.jobs.front()) : 0;
      for (std::size_t job = 0; job < family.jobs.size(); ++job) {
        add({&family.jobs[job], bounds[at].bounds[job], loss});
      }
    }
    // What is left may fit; which does not is found by simulation.
    if (!candidates_.empty()) found_.smallest.reset();
  }

  // By several threads.
  void note_too_large(const TrainingJob& job, Bytes memory) {
    const std::lock_guard lock(mutex_);
    if (found_.smallest && found_.smallest_memory <= memory) return;
    found_.smallest = job;
    found_.smallest_memory = memory;
  }

  void add(const Candidate& candidate) {
    const Bytes memory = candidate.bound.memory;
    if (static_cast<double>(memory.count) <= room_) {
      least_loss_ = std::min(least_loss_, candidate.loss);
      candidates_.push_back(candidate);
      return;
    }
    ++found_.counts.too_large;
    note_too_large(*candidate.job, memory);
  }

  // Whether a step of this loss, slower than all accepted so far, would be of any use.
  bool is_wanted(const Candidate& candidate) const {
    if (candidate.loss < front_loss_) return true;
    if (candidate.loss > search_.max_loss || found_.best.size() >= search_.best) return false;
    return std::none_of(found_.best.begin(), found_.best.end(), [&](const FoundStep& found) {
      return same_layout(found.job, *candidate.job);
    });
  }

  std::optional<double> step_us(const Candidate& candidate) {
    if (!is_wanted(candidate)) {
      ++skipped_;
      return std::nullopt;
    }
    const TrainingStep step = training::training_step(*candidate.job);
    if (static_cast<double>(step.peak_memory().count) > room_) {
      note_too_large(*candidate.job, step.peak_memory());
      return std::nullopt;
    }
    any_fits_ = true;
    if (step.tokens_per_second_per_gpu < search_.min_speed) return std::nullopt;
    return step.step_us;
  }

  bool accept(const Candidate& candidate) {
    if (is_wanted(candidate)) {
      const FoundStep found{*candidate.job, training::training_step(*candidate.job),
                            candidate.loss};
      if (candidate.loss < front_loss_) {
        front_loss_ = candidate.loss;
        found_.front.push_back(found);
      }
      const bool is_new =
          std::none_of(found_.best.begin(), found_.best.end(),
                       [&](const FoundStep& other) { return same_layout(other.job, found.job); });
      if (is_new && found.loss <= search_.max_loss && found_.best.size() < search_.best) {
        found_.best.push_back(found);
      }
    }
    return found_.best.size() < search_.best || front_loss_ > least_loss_;
  }

  const TrainingSearch& search_;
  double room_;
  TrainingCandidates possible_;
  std::vector<Candidate> candidates_;
  TrainingFound found_;
  double front_loss_ = std::numeric_limits<double>::infinity();  // least of the front
  double least_loss_ = std::numeric_limits<double>::infinity();  // of all candidates
  std::atomic<std::size_t> skipped_{0};
  std::atomic<bool> any_fits_{false};
  std::mutex mutex_;
};

}  // namespace

bool same_layout(const TrainingJob& one, const TrainingJob& other) {
  const auto key = [](const TrainingJob& job) {
    const parallel::ParallelLayout& sizes = job.layout.layout;
    return std::tuple(sizes.tensor, sizes.context, sizes.pipeline, sizes.virtual_pipeline,
                      sizes.expert, sizes.expert_tensor, job.layout.micro_batch,
                      job.layout.expert_overlap, job.dispatcher, job.capacity_factor);
  };
  return key(one) == key(other);
}

TrainingFound search_training(const TrainingSearch& search) { return Search(search).run(); }

std::vector<FoundStep> simulate_all(const TrainingSearch& search) {
  const TrainingCandidates possible = possible_jobs(search.space);
  std::vector<FoundStep> all;
  for (const TrainingFamily& family : possible.families) {
    const double loss = search.loss ? search.loss(family.jobs.front()) : 0;
    for (const TrainingJob& job : family.jobs) all.push_back({job, {}, loss});
  }
  parallel_for(all.size(), search.jobs,
               [&](std::size_t at) { all[at].step = training::training_step(all[at].job); });
  return all;
}

}  // namespace moesim::study
