#include "sim/study/search/lossless_first.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/study/sweep/counted_loss.hpp"

namespace moesim::study {
namespace {

void sort_by_time(std::vector<FoundStep>& steps) {
  std::stable_sort(steps.begin(), steps.end(), [](const FoundStep& one, const FoundStep& other) {
    return std::tie(one.step.step_us, one.loss) < std::tie(other.step.step_us, other.loss);
  });
}

}  // namespace

std::optional<TrainingFound> search_lossless(const TrainingSearch& search,
                                             std::shared_ptr<DrawnRoutings> drawn) {
  TrainingSearch lossless = search;
  if (drawn != nullptr) lossless.drawn = std::move(drawn);
  lossless.space.routings.clear();
  lossless.twin_margin = 0;
  std::vector<std::size_t> numbers;
  for (std::size_t at = 0; at < search.space.routings.size(); ++at) {
    const std::optional<training::DrawnRouting>& routing = search.space.routings[at];
    if (routing && routing->router.drops) continue;
    lossless.space.routings.push_back(routing);
    numbers.push_back(at);
  }
  if (numbers.empty() || numbers.size() == search.space.routings.size()) return std::nullopt;
  if (search.progress) {
    lossless.progress = [&](SearchProgress done) {
      done.is_of_lossless = true;
      search.progress(done);
    };
  }
  try {
    TrainingFound found = search_training(lossless);
    for (std::vector<FoundStep>* steps : {&found.best, &found.front}) {
      for (FoundStep& step : *steps) step.routing = numbers[step.routing];
    }
    return found;
  } catch (const Error&) {
    why_unanswered();
    return std::nullopt;  // none is possible, or can be priced: the whole search counts them
  }
}

double lossless_limit_us(const TrainingSearch& search,
                         const std::optional<TrainingFound>& lossless) {
  if (!lossless || lossless->best.size() < search.best) {
    return std::numeric_limits<double>::infinity();
  }
  constexpr double rounding = 1 + 1e-6;
  return rounding * (1 + search.twin_margin) * lossless->best.back().step.step_us;
}

std::vector<FoundStep> best_of_both(const TrainingSearch& search, std::vector<FoundStep> best,
                                    const std::vector<FoundStep>& lossless) {
  best.insert(best.end(), lossless.begin(), lossless.end());
  sort_by_time(best);
  std::vector<FoundStep> chosen;
  for (FoundStep& step : best) {
    if (chosen.size() == search.best) break;
    const auto key = [&](const training::TrainingJob& job) {
      return layout_key(job.layout, job, search.chunks_tell_apart);
    };
    const bool is_outdone = std::any_of(chosen.begin(), chosen.end(), [&](const FoundStep& faster) {
      const bool as_fast = std::find(faster.twins.as_fast.begin(), faster.twins.as_fast.end(),
                                     step.job.graphs) != faster.twins.as_fast.end();
      return !loses_clearly_less(step.loss, faster.loss) &&
             (same_sizes(step.job, faster.job, search.chunks_tell_apart) ||
              (as_fast && differ_in_graphs(key(step.job), key(faster.job))));
    });
    if (!is_outdone) chosen.push_back(std::move(step));
  }
  return chosen;
}

std::vector<FoundStep> front_of(std::vector<FoundStep> steps, const std::vector<FoundStep>& best) {
  steps.insert(steps.end(), best.begin(), best.end());
  sort_by_time(steps);
  std::vector<FoundStep> front;
  for (FoundStep& step : steps) {
    const bool loses_less = front.empty() || loses_clearly_less(step.loss, front.back().loss);
    if (loses_less) front.push_back(std::move(step));
  }
  return front;
}

TrainingFound answer_of(TrainingFound lossless, std::size_t candidates) {
  Unproven unproven{.least_us = 0};
  unproven.may_be_faster = candidates - lossless.counts.candidates;
  if (lossless.unproven) unproven.may_be_faster += lossless.unproven->may_be_faster;
  lossless.unproven = unproven;
  lossless.counts.candidates = candidates;
  return lossless;
}

}  // namespace moesim::study
