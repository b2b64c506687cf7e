#pragma once

#include <cstddef>
#include <string>

#include "sim/study/search/training_search.hpp"

namespace moesim::tool {

// The end of a heading: how many candidates were simulated and what is known of the others ("24
// were simulated, none of the others can be better"), those that nothing measured prices or no
// routing is drawn for, with a reason, and which routings were searched.
std::string simulated_text(const study::TrainingSearch& search, const study::SearchCounts& counts,
                           bool is_stopped, bool is_proven);

// Whether a search was stopped before its best were known to be the fastest of all.
bool is_unproven(const study::TrainingFound& found);

// The lines below the best of a search that was stopped: which of them are proven, how many
// candidates could still be faster, and by how much at most, and that the front is not complete;
// "" of a search that was not.
std::string unproven_lines(const study::TrainingFound& found);

// How much faster than one of the best a candidate may be that was not simulated: 0.05 for 5 %; 0:
// it is proven, or none can be; infinite: not known.
double unproven_gain(const study::TrainingFound& found, std::size_t place);

}  // namespace moesim::tool
