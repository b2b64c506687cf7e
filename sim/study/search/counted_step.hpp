#pragma once

#include <memory>

#include "sim/study/search/drawn_routings.hpp"
#include "sim/study/search/training_search.hpp"

namespace moesim::study {

// The predicted step of a job as the software of the search runs it.
training::TrainingStep counted_step(const TrainingSearch& search, const training::TrainingJob& job,
                                    const training::TrainingStep& predicted);

// What the search has drawn, if it keeps that, or room for it.
std::shared_ptr<DrawnRoutings> routings_of(const TrainingSearch& search);

// add_for_band() with what a search has drawn.
void add_for_band(const TrainingSearch& search, DrawnRoutings& drawn, FoundStep& found);

}  // namespace moesim::study
