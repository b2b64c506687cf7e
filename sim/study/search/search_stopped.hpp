#pragma once

#include <cstddef>

#include "sim/base/error.hpp"

namespace moesim::study {

// A search was stopped (TrainingSearch::stop) before the first step was simulated.
class SearchStopped : public Error {
 public:
  // `unfinished`: scenarios that were not simulated, of a search that counts them.
  explicit SearchStopped(std::size_t unfinished = 0)
      : Error("stopped before the first step was simulated", ExitCode::interrupted),
        unfinished_(unfinished) {}
  std::size_t unfinished() const { return unfinished_; }

 private:
  std::size_t unfinished_;
};

}  // namespace moesim::study
