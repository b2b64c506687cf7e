#pragma once

#include <string>

#include "sim/training/step/training_step.hpp"
#include "tools/moesim/bands/place_comparison.hpp"
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
  KnownRatio known;         // no levels: nothing is known
  std::string not_known{};  // why there are no levels: "two profiles of one kind of GPU"
};

StepElsewhere step_elsewhere(const PlacedStep& placed);

// The ratio of `step` to `other`, as `train --baseline` says it of their files
// (bands/train_baseline.hpp). Nothing is known of two profiles of one kind of GPU, whose ratio
// would be of the profiles, and of steps of a document of `moesim calibrate`, which is of one
// machine.
PlaceRatio place_ratio(const PlacedStep& step, const PlacedStep& other);

}  // namespace moesim::tool
