#pragma once

#include <string>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::study {

// Options with which a training step would fit in memory.
struct TrainingHint {
  std::string options;  // "--recompute moe_act", "--tensor-parallel 2 --global-batch 512"
  Bytes need;           // then, on the fullest rank
  double speed = 1;     // tokens per second then, over those now
};

// What makes `step`, the step of `job`, fit in `room`, one kind of option changed at a time: the
// least recomputation of training_space.hpp that is enough, a higher ZeRO stage, moments in bf16, a
// smaller micro-batch, more expert, tensor or pipeline ranks; then, if none is enough, full
// recomputation with the others of memory alone. Fastest first. Each is simulated, with the
// sequences per step of the job.
std::vector<TrainingHint> training_hints(const training::TrainingJob& job,
                                         const training::TrainingStep& step, Bytes room);

}  // namespace moesim::study
