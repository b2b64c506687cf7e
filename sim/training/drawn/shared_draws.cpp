#include "sim/training/drawn/shared_draws.hpp"

#include <fmt/format.h>

namespace moesim::training {
namespace {

// Documents are those of one command line, where the same name means the same document.
std::string key_of_all(const TrainingJob& job) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", job.typed.model, job.typed.profile, job.typed.cluster,
                     job.typed.dispatcher, drawn_key(job));
}

}  // namespace

std::shared_ptr<const DrawnLoads> SharedDraws::loads(const TrainingJob& job,
                                                     const DrawProgress& progress) {
  return loads_.get({key_of_all(job), drawn_shape(job)}, [&] {
    return std::make_shared<const DrawnLoads>(job, true, &draws_, progress);
  });
}

std::shared_ptr<const FurtherLosses> SharedDraws::further(const TrainingJob& job, int steps,
                                                          int threads,
                                                          const DrawProgress& progress) {
  return further_.get({{key_of_all(job), drawn_shape(job)}, steps}, [&] {
    return std::make_shared<const FurtherLosses>(
        further_losses(job, steps, threads, progress, &draws_));
  });
}

}  // namespace moesim::training
