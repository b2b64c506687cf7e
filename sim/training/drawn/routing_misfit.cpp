#include "sim/training/drawn/routing_misfit.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/routing/rules/routing_refusal.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/job/stage_division.hpp"

namespace moesim::training {
namespace {

// Throws UsageError for a trace of more ranks than a stage has.
void check_ranks(const routing::Trace& trace, const parallel::ParallelLayout& layout) {
  const int recorded = trace.shape().ranks;
  const int ranks = stage_ranks(layout);
  if (recorded <= ranks) return;
  const std::string whose = layout.pipeline > 1
                                ? fmt::format("each pipeline stage of the job {} GPUs", ranks)
                                : fmt::format("the job {} GPUs", ranks);
  std::string text = fmt::format("{}: it has {} ranks, {}: choose --gpus {} or a multiple",
                                 trace.file(), recorded, whose, recorded * layout.pipeline);
  if (layout.pipeline > 1 && layout.gpus >= recorded) {
    text += fmt::format(", or --pipeline-parallel {} or less", layout.gpus / recorded);
  }
  throw UsageError(text);
}

}  // namespace

void check_routing(const routing::RoutingJob& job, const TrainingJob& asked) {
  routing::RoutingJob checked = job;
  if (const routing::Trace* const trace = job.scores.trace.get(); trace != nullptr) {
    check_ranks(*trace, asked.layout.sizes);
    checked.gpus = std::max(checked.gpus, stage_ranks(asked.layout.sizes));
  }
  try {
    routing::check(checked);
  } catch (const routing::RoutingRefusal& refusal) {
    throw UsageError(refusal.in_training());
  }
}

std::string routing_misfit(const TrainingJob& job) {
  if (!job.routing) return "";
  const DrawnRouting& drawn = *job.routing;
  if (!drawn.scores.trace && drawn.fidelity != routing::Fidelity::counts) return "";
  try {
    check_routing(block_routing(job), job);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace moesim::training
