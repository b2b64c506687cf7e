#pragma once

#include "sim/study/search/training_space.hpp"

namespace moesim::study {

// The candidates of a space. Throws UsageError where there are none, with a rule that is broken and
// the nearest batches and numbers of GPUs that have some.
TrainingCandidates possible_jobs(const TrainingSpace& space);

}  // namespace moesim::study
