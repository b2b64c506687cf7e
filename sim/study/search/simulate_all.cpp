#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/parallel.hpp"
#include "sim/study/search/possible_jobs.hpp"
#include "sim/study/search/training_search.hpp"

namespace moesim::study {

AllSteps simulate_all(const TrainingSearch& search) {
  const TrainingCandidates possible = possible_jobs(search.space);
  std::vector<FoundStep> all;
  for (const TrainingFamily& family : possible.families) {
    for (const training::TrainingJob& job : family.jobs()) {
      all.push_back({job, {}, family.routing(), 0, {}, {}});
    }
  }
  const std::shared_ptr<DrawnRoutings> drawn =
      search.drawn ? search.drawn : std::make_shared<DrawnRoutings>();
  std::vector<char> done(all.size(), 0);
  std::vector<char> priced(all.size(), 0);
  std::vector<std::string> reasons(all.size());
  std::mutex mutex;
  SearchProgress progress{all.size()};
  parallel_for(all.size(), search.jobs, [&](std::size_t at) {
    if (search.stop && search.stop()) return;
    try {
      const bool draws = all[at].job.routing.has_value();
      set_step(
          search,
          training::training_step(all[at].job, draws ? drawn->loads(all[at].job) : nullptr, false),
          all[at]);
      priced[at] = 1;
    } catch (const Error&) {
      reasons[at] = why_unanswered();  // no candidate of search_training() either
    }
    const std::lock_guard lock(mutex);
    done[at] = 1;
    ++progress.simulated;
    if (search.progress) search.progress(progress);
  });
  if (progress.simulated == 0 && !all.empty()) throw SearchStopped(all.size());
  AllSteps found;
  for (std::size_t at = 0; at < all.size(); ++at) {
    if (done[at] == 0) {
      ++found.unfinished;
    } else if (priced[at] != 0) {
      found.steps.push_back(std::move(all[at]));
    } else if (found.left_out++ == 0) {
      found.a_reason = reasons[at];
    }
  }
  return found;
}

}  // namespace moesim::study
