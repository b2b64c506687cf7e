#pragma once

#include <string>

#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "tools/moesim/bands/train_band.hpp"

namespace moesim::tool {

// A predicted step, with its band.
struct PlacedStep {
  const training::TrainingJob& job;
  const training::TrainingStep& step;
  const TrainBand& answer;
};

// How many times as fast one step is as another of the same model and software, on another machine
// or in another cluster.
struct PlaceRatio {
  double speed = 1;         // tokens per second and GPU over those of the other
  uncertainty::Band band;   // of log(measured / predicted ratio); no levels: not known
  std::string known_by;     // "28 groups of pairs of machines that ran one release of ..."
  std::string not_known{};  // why there are no levels: "two profiles of one kind of GPU"
};

// The ratio of `step` to `other`, as `train --baseline` says it of their files
// (bands/train_baseline.hpp). Nothing is known of two profiles of one kind of GPU, whose ratio
// would be of the profiles, and of steps of a document of `moesim calibrate`, which is of one
// machine.
PlaceRatio place_ratio(const PlacedStep& step, const PlacedStep& other);

}  // namespace moesim::tool
