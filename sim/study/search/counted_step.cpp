#include "sim/study/search/counted_step.hpp"

#include <utility>

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

}  // namespace moesim::study
