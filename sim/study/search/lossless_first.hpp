#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/study/search/training_search.hpp"

namespace moesim::study {

// The best of those candidates whose router drops nothing, where a search has others too: they need
// no draw of losses, and whatever is slower than all of them is of no use. Nothing where all or
// none drop, or none is possible. Routings are numbered as in the whole search. `drawn`: goes
// before that of the search; null: it does not. Throws SearchStopped.
std::optional<TrainingFound> search_lossless(const TrainingSearch& search,
                                             std::shared_ptr<DrawnRoutings> drawn = nullptr);

// The time that no other candidate of the search may exceed: to be one of the best, on the front or
// a twin. `lossless`: what search_lossless() found.
double lossless_limit_us(const TrainingSearch& search,
                         const std::optional<TrainingFound>& lossless);

// The best of `best` and of what search_lossless() found, as TrainingFound::best has them.
std::vector<FoundStep> best_of_both(const TrainingSearch& search, std::vector<FoundStep> best,
                                    const std::vector<FoundStep>& lossless);

// TrainingFound::front, of steps that were taken by DrawnRoutings::loss() and of the best. By their
// own draws, which are told, one may lose no less than a faster one, or one of the best less.
std::vector<FoundStep> front_of(std::vector<FoundStep> steps, const std::vector<FoundStep>& best);

// What search_lossless() found as the answer to a search of `candidates`, the rest of which has no
// bounds yet.
TrainingFound answer_of(TrainingFound lossless, std::size_t candidates);

}  // namespace moesim::study
