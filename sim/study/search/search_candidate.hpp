#pragma once

#include <cstdint>

#include "sim/base/units.hpp"
#include "sim/study/search/candidate_bounds.hpp"

namespace moesim::study {

// A search may have millions: what those of a family share, FamilyBounds has.
struct Candidate {
  double bound_us = 0;
  std::uint32_t family = 0;
  std::uint16_t place = 0;  // of its jobs
  Tightness tightness = Tightness::own;
  bool is_open = true;  // neither simulated nor known to be of no use
};

// What is known of a simulated candidate.
struct Timed {
  double step_us = 0;
  double tokens_per_second_per_gpu = 0;
  Bytes memory;
};

}  // namespace moesim::study
