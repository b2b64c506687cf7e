#pragma once

#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"

namespace moesim::tool {

// How far the layout that the search started from is from the first of the best, and in which parts
// of the step. `first_name`: of that one. Without any best, what the layout does by itself. "": the
// search started from none.
std::string yours_text(const RecommendRequest& request, const std::vector<study::FoundStep>& best,
                       const std::string& first_name);

}  // namespace moesim::tool
