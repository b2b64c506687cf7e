#pragma once

#include "tools/moesim/recommend/request/recommend_request.hpp"

namespace moesim::tool {

// Sets the routings of a search, and their flags, to what is drawn of each router at each capacity
// factor; notes what holds for all. `base`: with a layout that routing is checked with. Throws
// UsageError naming the flag.
void take_routings(const CommandLine& line, const training::TrainingJob& base, bool may_lose,
                   RecommendRequest& request);

// All published steps are of Megatron-LM, whose capacity is another one than the default.
void note_dialect(const CommandLine& line, const study::TrainingSpace& space);

}  // namespace moesim::tool
