#pragma once

#include <string>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"

namespace moesim::tool {

// Which common switches, which the search took at their defaults because nobody asked for others,
// make a step at least 2 % faster, each alone, and the options that search them: overlap of the
// experts' exchange, dispatchers, graphs, moments, precision of dispatched rows, schedules. The
// layout is simulated again with each, with the chunks that it needs. `name`: of the step, "1". ""
// where none does; those that cannot be, do not fit or lose too much are left out.
std::string switches_text(const RecommendRequest& request, const study::FoundStep& found,
                          const std::string& name);

}  // namespace moesim::tool
