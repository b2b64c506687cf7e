#include "tools/moesim/recommend/best/remedies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "sim/base/no_answer.hpp"
#include "sim/training/drawn/routing_misfit.hpp"
#include "sim/training/step/step_bound.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::tool {
namespace {

using study::TrainingSearch;
using training::TrainingJob;

// The jobs of a space, least bound of memory first.
std::vector<TrainingJob> by_memory(const study::TrainingSpace& space) {
  std::vector<std::pair<std::int64_t, TrainingJob>> found;
  for (const study::TrainingFamily& family : study::candidates_of(space).families) {
    for (const TrainingJob& job : family.jobs()) {
      found.emplace_back(training::memory_bound(job).count, job);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<TrainingJob> jobs;
  for (auto& [bound, job] : found) jobs.push_back(std::move(job));
  return jobs;
}

}  // namespace

Remedies what_would_fit(const TrainingSearch& search, const TrainingJob& smallest) {
  const double room =
      search.memory_share * static_cast<double>(smallest.profile->device().hbm_bytes.count);
  const auto fits = [&](const TrainingJob& job) {
    const bool may_fit = !parallel::layout_refusal(*job.model, job.layout) &&
                         training::routing_misfit(job).empty() &&
                         static_cast<double>(training::memory_bound(job).count) <= room;
    if (!may_fit) return false;
    try {
      const auto loads = job.routing ? search.drawn->rows(job) : nullptr;
      const training::TrainingStep step = training::training_step(job, loads, false);
      return static_cast<double>(step.peak_memory().count) <= room;
    } catch (const Error&) {
      why_unanswered();  // no remedy then
      return false;
    }
  };
  constexpr std::size_t most_tried =
      64;  // of a number of GPUs: a bound is lower than what is taken
  const auto any_fits = [&](const study::TrainingSpace& space) {
    std::vector<TrainingJob> jobs = by_memory(space);
    if (jobs.size() > most_tried) jobs.resize(most_tried);
    return std::any_of(jobs.begin(), jobs.end(), fits);
  };
  Remedies remedies;
  TrainingJob lighter = smallest;
  lighter.states.moment_bytes = 2;
  if (smallest.states.moment_bytes != 2) {
    remedies.tried.emplace_back("--optimizer-moments bf16");
    if (fits(lighter)) remedies.found = remedies.tried;
  }
  int tried = 0;
  for (int times = 2; times <= 1024; times *= 2) {
    const int gpus = times * search.space.base.layout.sizes.gpus;
    if (const int most = smallest.cluster->max_gpus(); most > 0 && gpus > most) break;
    tried = gpus;
    study::TrainingSpace space = study::on_gpus(search.space, gpus);
    if (any_fits(space)) {
      remedies.found.push_back(fmt::format("--gpus {}", gpus));
      break;
    }
    if (!space.typed.contains("global-batch")) continue;
    space.base.layout.global_batch *= times;
    if (!any_fits(space)) continue;
    remedies.found.push_back(
        fmt::format("--gpus {} --global-batch {}", gpus, space.base.layout.global_batch));
    break;
  }
  if (tried > 0) remedies.tried.push_back(fmt::format("--gpus up to {}", tried));
  return remedies;
}

}  // namespace moesim::tool
