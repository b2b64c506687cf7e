#pragma once

#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"

namespace moesim::tool {

// Whether the first of these steps, fastest first, stays the fastest when one assumption moves that
// no step of theirs measured, to the ends that it is known to: what the host costs, what NICs
// reach, how uneven experts are. The steps are simulated again. "" for one step, for software of
// one's own, whose host and exchanges were measured, and where nothing could be moved.
std::string assumptions_text(const RecommendRequest& request,
                             const std::vector<study::FoundStep>& best);

}  // namespace moesim::tool
