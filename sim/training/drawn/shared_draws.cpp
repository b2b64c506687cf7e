#include "sim/training/drawn/shared_draws.hpp"

#include <fmt/format.h>

#include "sim/training/drawn/block_routing.hpp"

namespace moesim::training {
namespace {

// A capacity's losses take a sample of tokens, its rows the counts alone.
bool has_fast_rows(const TrainingJob& job) {
  const routing::RouterConfig& router = job.routing->router;
  return router.drops && router.rectification == routing::Rectification::none &&
         block_routing(job).fidelity == routing::Fidelity::counts;
}

}  // namespace

// What else loads depend on, such as what a dispatcher sends, is in the shape.
SharedDraws::Key SharedDraws::key_of(const TrainingJob& job, bool with_losses) {
  return {fmt::format("{}\n{}\n{}", job.typed.model, job.typed.cluster, drawn_key(job)),
          drawn_shape(job), with_losses};
}

SharedDraws::Loads SharedDraws::of(const TrainingJob& job, bool with_losses,
                                   const DrawProgress& progress) {
  return loads_.get(key_of(job, with_losses), [&] {
    ++drawn_;
    return std::make_shared<const DrawnLoads>(job, with_losses, &draws_, progress);
  });
}

SharedDraws::Loads SharedDraws::loads(const TrainingJob& job, const DrawProgress& progress) {
  return of(job, true, progress);
}

SharedDraws::Loads SharedDraws::rows(const TrainingJob& job) {
  return of(job, !has_fast_rows(job), {});
}

std::shared_ptr<const FurtherLosses> SharedDraws::further(const TrainingJob& job, int steps,
                                                          int threads,
                                                          const DrawProgress& progress) {
  return further_.get({key_of(job, true), steps}, [&] {
    return std::make_shared<const FurtherLosses>(
        further_losses(job, steps, threads, progress, &draws_));
  });
}

}  // namespace moesim::training
