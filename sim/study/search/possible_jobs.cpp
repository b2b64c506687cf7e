#include "sim/study/search/possible_jobs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim::study {

TrainingCandidates possible_jobs(const TrainingSpace& space) {
  TrainingCandidates possible = candidates_of(space);
  if (possible.count > 0) return possible;
  if (possible.combinations == 0) {
    throw UsageError(
        fmt::format("none of the layouts asked for is possible: their sizes do not divide {} GPUs; "
                    "change --gpus, or give --tensor-parallel, --context-parallel, "
                    "--pipeline-parallel and --expert-parallel sizes that divide it",
                    space.base.layout.sizes.gpus));
  }
  std::string text =
      fmt::format("none of the {} layouts asked for is possible{}{}", possible.combinations,
                  possible.a_refusal.empty() ? "" : ": ", possible.a_refusal);
  const std::vector<std::string> nearest = nearest_possible(space);
  if (!nearest.empty()) {
    text += fmt::format("; nearest that are: {}", fmt::join(nearest, "; "));
  }
  throw UsageError(text);
}

}  // namespace moesim::study
