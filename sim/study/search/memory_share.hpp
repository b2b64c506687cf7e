#pragma once

namespace moesim::study {

// The share of a GPU's memory that a step or a pass may take, so that libraries have room too.
inline constexpr double usual_memory_share = 0.9;

}  // namespace moesim::study
