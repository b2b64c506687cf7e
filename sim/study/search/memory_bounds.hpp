#pragma once

#include <functional>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/study/search/training_space.hpp"

namespace moesim::study {

// [family][job] What the memory of each job cannot be below: training::memory_bound() of it without
// a draw. Of jobs that differ in their routing alone, those with more rows take no less: where
// fewer rows do not fit in `room` bytes, theirs is the bound of the others too. Where no job fits,
// each has its own, so that the smallest is known. On up to `jobs` threads, which call
// `before_each` now and then; may be empty, and what it throws is thrown.
std::vector<std::vector<Bytes>> memory_bounds(const std::vector<TrainingFamily>& families,
                                              double room, int jobs,
                                              const std::function<void()>& before_each = {});

}  // namespace moesim::study
