#include "sim/training/drawn/routing_misfit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/job/stage_division.hpp"

namespace moesim::training {
namespace {

// Options of a scenario, and what decides the same in a training step.
constexpr std::pair<const char*, const char*> terms[] = {
    {"choose --tokens-per-gpu ",
     "choose --sequence-length, --micro-batch, tensor and context ranks for tokens per rank of "},
    {"change --experts to ", "a --model whose experts number "},
    {"or more --experts", "or a --model with more experts"},
    {"per GPU and layer", "per rank and layer"}};

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

std::string in_training_terms(std::string text) {
  for (const auto& [scenario, training] : terms) {
    const std::size_t at = text.find(scenario);
    if (at != std::string::npos) text.replace(at, std::string(scenario).size(), training);
  }
  return text;
}

void check_routing(const routing::RoutingJob& job, const TrainingJob& asked) {
  routing::RoutingJob checked = job;
  if (const routing::Trace* const trace = job.scores.trace.get(); trace != nullptr) {
    check_ranks(*trace, asked.layout.sizes);
    checked.gpus = std::max(checked.gpus, stage_ranks(asked.layout.sizes));
  }
  try {
    routing::check(checked);
  } catch (const UsageError& error) {
    throw UsageError(in_training_terms(error.what()));
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
