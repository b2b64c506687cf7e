#include "sim/step/scenario.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"

namespace moesim::step {

std::string name_of(Dispatch value) { return value == Dispatch::index ? "index" : "einsum"; }
std::string name_of(Mode value) { return value == Mode::train ? "train" : "prefill"; }
std::string name_of(Checkpointing value) {
  return value == Checkpointing::none ? "none" : "full";
}
std::string name_of(Overlap value) { return value == Overlap::none ? "none" : "gradient"; }
std::string name_of(Network value) { return value == Network::automatic ? "auto" : "fast"; }

routing::RoutingJob Scenario::routing_job() const {
  routing::RoutingJob job;
  job.router = router;
  job.scores = scores;
  job.experts = experts;
  job.gpus = gpus;
  job.expert_parallel = expert_parallel;
  job.gpus_per_domain = cluster->gpus_per_domain;
  job.tokens_per_gpu = tokens_per_gpu;
  job.layers = model->moe_layers();
  job.seed = seed;
  return job;
}

void check(const Scenario& scenario) {
  if (scenario.gpus % scenario.expert_parallel != 0) {
    throw UsageError(fmt::format(
        "--gpus {} is not a multiple of --expert-parallel {}: every expert needs the same number "
        "of replicas",
        scenario.gpus, scenario.expert_parallel));
  }
  if (scenario.tokens_per_gpu % scenario.sequence_length != 0 &&
      scenario.tokens_per_gpu > scenario.sequence_length) {
    throw UsageError(fmt::format(
        "{} tokens per GPU are no whole number of sequences of {} tokens: change --tokens-per-gpu "
        "or --sequence-length",
        scenario.tokens_per_gpu, scenario.sequence_length));
  }
  if (scenario.zero < 0 || scenario.zero > 3) {
    throw UsageError(fmt::format("--zero {}: give 0, 1, 2 or 3", scenario.zero));
  }
  if (scenario.has_moe()) routing::check(scenario.routing_job());
}

}  // namespace moesim::step
