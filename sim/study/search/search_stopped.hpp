#pragma once

#include "sim/base/error.hpp"

namespace moesim::study {

// A search was stopped (TrainingSearch::stop) before the first step was simulated.
class SearchStopped : public Error {
 public:
  SearchStopped() : Error("stopped before the first step was simulated", ExitCode::interrupted) {}
};

}  // namespace moesim::study
