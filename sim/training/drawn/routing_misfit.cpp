#include "sim/training/drawn/routing_misfit.hpp"

#include <utility>

#include "sim/base/error.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/drawn/block_routing.hpp"

namespace moesim::training {
namespace {

// Options of a scenario, and what decides the same in a training step.
constexpr std::pair<const char*, const char*> terms[] = {
    {"choose --tokens-per-gpu ",
     "choose --sequence-length, --micro-batch, tensor and context ranks for tokens per rank of "},
    {"choose --gpus ", "choose --expert-parallel "},
    {"change --experts to ", "a --model whose experts number "},
    {"or more --experts", "or a --model with more experts"},
    {"per GPU and layer", "per rank and layer"}};

}  // namespace

std::string in_training_terms(std::string text) {
  for (const auto& [scenario, training] : terms) {
    const std::size_t at = text.find(scenario);
    if (at != std::string::npos) text.replace(at, std::string(scenario).size(), training);
  }
  return text;
}

void check_routing(const routing::RoutingJob& job) {
  try {
    routing::check(job);
  } catch (const UsageError& error) {
    throw UsageError(in_training_terms(error.what()));
  }
}

std::string routing_misfit(const TrainingJob& job) {
  if (!job.routing) return "";
  const DrawnRouting& drawn = *job.routing;
  if (!drawn.scores.trace && drawn.fidelity != routing::Fidelity::counts) return "";
  try {
    check_routing(block_routing(job));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace moesim::training
