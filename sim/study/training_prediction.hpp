#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/scenario/options.hpp"
#include "sim/study/training_band.hpp"
#include "sim/training/drawn/shared_draws.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::study {

// How the step of a job is predicted, besides what the job says.
struct TrainingSettings {
  std::string software;                     // as in training_band.hpp
  int replicas = 1;                         // how often it is drawn, 1 to 2^20: --replicas
  training::DrawProgress progress;          // of drawing routing; may be empty
  training::SharedDraws* shared = nullptr;  // what other steps draw alike; null: nothing
};

// A training step, as `moesim train` predicts it.
struct TrainingPrediction {
  training::TrainingJob job;               // as it was priced
  training::TrainingStep step;             // as the software runs it: step_us is the prediction
  training::TrainingStep before_software;  // as the curves have it, which a timeline shows
  TrainingBand band;
  std::vector<std::string> notes;  // what a user should know, a line each; of options alone

  double step_ms() const { return step.step_us / 1e3; }
  StepTimes times() const { return step_times(band.band, step); }
};

// The step that options of `moesim train` ask for, by their names: those of a training job
// (job::job_options()) and "software"; also "replicas", which `simulate` and `sweep` take with such
// a step. Without "profile" a cluster has its own GPUs, as for the command. This is all that the
// command does but what it prints: training::training_step() alone leaves out what a document of
// one's own software changes, in "software" or in "profile". Throws UsageError naming the option,
// Error for curves that the profile does not have.
TrainingPrediction predict_training(const scenario::OptionValues& options,
                                    scenario::DocumentCache& documents);
// The same of a job. Of several replicas the step with the median time, the lower of two; each has
// the next seed, and losses are the means over all. One where no routing is drawn.
TrainingPrediction predict_training(training::TrainingJob job, const TrainingSettings& settings);

// --replicas: 1 to 2^20. Throws UsageError.
int parse_replicas(const std::string& text);

}  // namespace moesim::study
