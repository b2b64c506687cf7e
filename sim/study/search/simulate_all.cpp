#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/parallel.hpp"
#include "sim/study/search/possible_jobs.hpp"
#include "sim/study/search/training_search.hpp"

namespace moesim::study {

std::vector<FoundStep> simulate_all(const TrainingSearch& search) {
  const TrainingCandidates possible = possible_jobs(search.space);
  std::vector<FoundStep> all;
  for (const TrainingFamily& family : possible.families) {
    for (const training::TrainingJob& job : family.jobs()) {
      all.push_back({job, {}, family.routing(), 0, {}, {}});
    }
  }
  const std::shared_ptr<DrawnRoutings> drawn =
      search.drawn ? search.drawn : std::make_shared<DrawnRoutings>();
  std::vector<char> priced(all.size(), 0);
  std::mutex mutex;
  SearchProgress progress{all.size()};
  parallel_for(all.size(), search.jobs, [&](std::size_t at) {
    if (search.stop && search.stop()) throw SearchStopped();
    try {
      const bool draws = all[at].job.routing.has_value();
      set_step(
          search,
          training::training_step(all[at].job, draws ? drawn->loads(all[at].job) : nullptr, false),
          all[at]);
      priced[at] = 1;
    } catch (const Error&) {
      // Neither a candidate of search_training(): curves or routing are missing.
    }
    const std::lock_guard lock(mutex);
    ++progress.simulated;
    if (search.progress) search.progress(progress);
  });
  std::vector<FoundStep> possible_steps;
  for (std::size_t at = 0; at < all.size(); ++at) {
    if (priced[at] != 0) possible_steps.push_back(std::move(all[at]));
  }
  return possible_steps;
}

}  // namespace moesim::study
