#pragma once

#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"

namespace moesim::tool {

// Changes outside of the search under which a job would fit: options of less memory, and the fewest
// GPUs, with the global batch where the one that was typed is not possible there.
struct Remedies {
  std::vector<std::string> found;
  std::vector<std::string> tried;  // "--gpus up to 4096"
};
Remedies what_would_fit(const study::TrainingSearch& search, const training::TrainingJob& smallest);

}  // namespace moesim::tool
