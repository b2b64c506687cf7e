#include "sim/study/search/counted_step.hpp"

#include <memory>
#include <utility>

#include "sim/study/sweep/counted_loss.hpp"
#include "sim/training/step/layer_time.hpp"

namespace moesim::study {

using training::TrainingJob;
using training::TrainingStep;

TrainingStep counted_step(const TrainingSearch& search, const TrainingJob& job,
                          const TrainingStep& predicted) {
  if (!search.software) return predicted;
  return search.software->applied(predicted, training::crossing_parts(job));
}

void add_for_band(const TrainingSearch& search, DrawnRoutings& drawn, FoundStep& found) {
  const bool has_host = search.software && search.software->prices_host;
  // Host times that software of one's own does not price are in the band of all software.
  const bool has_moves = !search.software;
  if (found.job.states.zero < 2 && !has_host && !has_moves) return;
  TrainingStep predicted = found.predicted.value_or(found.step);
  const DrawnRoutings::Loads loads = found.job.routing ? drawn.rows(found.job) : nullptr;
  training::add_hidden_parts(found.job, predicted, loads);
  if (has_moves) training::add_host_moves(found.job, predicted, loads);
  if (has_host) uncertainty::add_host_gain(*search.software, found.job, predicted, loads);
  found.step = counted_step(search, found.job, predicted);
  if (found.predicted) found.predicted = std::move(predicted);
}

std::shared_ptr<DrawnRoutings> routings_of(const TrainingSearch& search) {
  return search.drawn ? search.drawn : std::make_shared<DrawnRoutings>();
}

void set_step(const TrainingSearch& search, const TrainingStep& predicted, FoundStep& found) {
  found.step = counted_step(search, found.job, predicted);
  found.loss = counted_loss(found.job, found.step);
  if (search.software) found.predicted = predicted;
}

void add_for_band(const TrainingSearch& search, FoundStep& found) {
  add_for_band(search, *routings_of(search), found);
}

void add_forced_step(const TrainingSearch& search, FoundStep& found) {
  if (!found.job.routing) return;
  TrainingStep predicted = found.predicted.value_or(found.step);
  const TrainingJob forced = training::forced_balance_job(found.job);
  training::add_forced_step(found.job, predicted,
                            forced.routing ? routings_of(search)->rows(forced) : nullptr);
  found.step = counted_step(search, found.job, predicted);
  if (found.predicted) found.predicted = std::move(predicted);
}

}  // namespace moesim::study
