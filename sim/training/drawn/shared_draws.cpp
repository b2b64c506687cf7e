#include "sim/training/drawn/shared_draws.hpp"

#include <fmt/format.h>

#include "sim/training/drawn/block_routing.hpp"

namespace moesim::training {
namespace {

// All that is drawn, but for drawn_shape(). Documents are those of one command line, where the same
// name means the same document. Padding does not change which routes are kept, but loads.
std::string drawn_key(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  return fmt::format("{}\n{}\n{}\n{}\n{}{} {} {} {} {} {}", job.typed.model, job.typed.profile,
                     job.typed.cluster, job.typed.dispatcher, block_routing(job).key(),
                     static_cast<int>(drawn.router.padding), drawn.replica, drawn.trace_step,
                     static_cast<int>(drawn.draws), static_cast<int>(drawn.fidelity),
                     job.redundant_experts);
}

}  // namespace

std::shared_ptr<const DrawnLoads> SharedDraws::loads(const TrainingJob& job,
                                                     const DrawProgress& progress) {
  return loads_.get({drawn_key(job), drawn_shape(job)}, [&] {
    return std::make_shared<const DrawnLoads>(job, true, &draws_, progress);
  });
}

std::shared_ptr<const FurtherLosses> SharedDraws::further(const TrainingJob& job, int steps,
                                                          int threads,
                                                          const DrawProgress& progress) {
  return further_.get({{drawn_key(job), drawn_shape(job)}, steps}, [&] {
    return std::make_shared<const FurtherLosses>(
        further_losses(job, steps, threads, progress, &draws_));
  });
}

}  // namespace moesim::training
