#include "sim/scenario/scenario.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/simulation/trace_routing.hpp"

namespace moesim::scenario {

std::string name_of(Dispatch value) { return value == Dispatch::index ? "index" : "einsum"; }
std::string name_of(Mode value) { return value == Mode::train ? "train" : "prefill"; }
std::string name_of(Checkpointing value) { return value == Checkpointing::none ? "none" : "full"; }
std::string name_of(Overlap value) { return value == Overlap::none ? "none" : "gradient"; }
std::string name_of(Network value) {
  if (value == Network::automatic) return "auto";
  return value == Network::fast ? "fast" : "flows";
}

std::string name_of(Deduplication value) {
  if (value == Deduplication::none) return "none";
  return value == Deduplication::gpu ? "gpu" : "node";
}

routing::RoutingJob Scenario::routing_job() const {
  routing::RoutingJob job;
  job.router = router;
  job.scores = scores;
  job.experts = experts;
  job.gpus = gpus;
  job.expert_parallel = expert_parallel;
  job.order = order;
  job.gpus_per_domain = cluster->gpus_per_domain;
  job.tokens_per_gpu = tokens_per_gpu;
  job.layers = model->moe_layers();
  job.seed = seed;
  job.count_copies = dedup != Deduplication::none;
  // Counts do not say which routes are of one token.
  job.fidelity = job.count_copies && fidelity == routing::Fidelity::automatic
                     ? routing::Fidelity::tokens
                     : routing::choose_fidelity(fidelity, job);
  return job;
}

std::int64_t Scenario::tokens_of(int gpu) const {
  if (!has_moe()) return tokens_per_gpu;
  return scores.tokens_of(gpu % expert_parallel, expert_parallel, tokens_per_gpu);
}

bool Scenario::is_ragged() const {
  return has_moe() && scores.is_ragged(expert_parallel, tokens_per_gpu);
}

double Scenario::mean_tokens() const {
  if (!is_ragged()) return static_cast<double>(tokens_per_gpu);
  std::int64_t sum = 0;
  for (int rank = 0; rank < expert_parallel; ++rank) sum += tokens_of(rank);
  return static_cast<double>(sum) / expert_parallel;
}

std::int64_t Scenario::gate_outputs() const {
  if (!has_moe() || !router.has_gate()) return 0;
  return router.kind == routing::RouterKind::soft ? mixed_slots() : experts;
}

std::int64_t Scenario::mixed_sequences() const {
  return std::max<std::int64_t>(1, tokens_per_gpu / sequence_length);
}

std::int64_t Scenario::mixed_slots() const {
  const std::int64_t slots = experts * router.capacity(tokens_per_gpu, experts);
  return (slots + mixed_sequences() - 1) / mixed_sequences();
}

namespace {

// The engine keeps three times (24 bytes) for each operation of each GPU. An MoE layer has about 40
// operations with all that adds some (ir@node, a shared expert, checkpointing, ZeRO-3), else fewer.
constexpr double operations_per_layer = 40;
constexpr double most_operations = 2e8;

void check_size(const Scenario& scenario) {
  const std::int64_t micro_steps = scenario.mode == Mode::train ? scenario.micro_steps : 1;
  const double operations = operations_per_layer * scenario.model->layers *
                            static_cast<double>(scenario.gpus) * static_cast<double>(micro_steps);
  if (operations <= most_operations) return;
  throw UsageError(fmt::format(
      "{} micro-steps of {} layers on {} GPUs are about {:.1g} operations, more than the {:.0g} "
      "that are simulated at a time: use a smaller --global-batch (a step's micro-steps are alike) "
      "or fewer --gpus",
      micro_steps, scenario.model->layers, scenario.gpus, operations, most_operations));
}

// What needs blocks of equal size, under a router that has none.
void check_router(const Scenario& scenario) {
  const routing::RouterConfig& router = scenario.router;
  const std::string name = router.name();
  if (scenario.dispatch == Dispatch::einsum) {
    const auto refuse = [&](const char* why) {
      throw UsageError(
          fmt::format("--dispatch einsum: router {} {}; use --dispatch index", name, why));
    };
    if (!router.pads_exchange()) {
      refuse(router.has_capacity()
                 ? "without padding has no blocks of equal size for one-hot products"
                 : "sends no blocks of equal size for one-hot products");
    }
    if (router.kind == routing::RouterKind::soft) refuse("mixes tokens by products of its own");
    if (router.kind == routing::RouterKind::base) refuse("sorts tokens, it has no one-hot masks");
  }
  if (router.pads_exchange()) return;
  if (router.rectification != routing::Rectification::none &&
      router.ir_compute == routing::IrCompute::grouped) {
    throw UsageError(fmt::format(
        "--ir-compute grouped: router {} without padding has no blocks of equal size to append "
        "rows to; use separate or overlap",
        name));
  }
  if (!scenario.conditions.overlap.none()) {
    throw UsageError(fmt::format(
        "--overlap-slowdown: only exchanges of equal blocks slow down beside compute, and router "
        "{} sends uneven ones: leave it out",
        name));
  }
}

void check_deduplication(const Scenario& scenario) {
  if (scenario.dedup == Deduplication::none) return;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("--dedup {}: {}", name_of(scenario.dedup), why));
  };
  const routing::RouterConfig& router = scenario.router;
  if (router.counts_known()) {
    routing::RouterConfig unpadded = router;
    unpadded.pad_to_capacity = false;
    refuse(
        fmt::format("router {} sends every expert a block of its own, full or not: choose "
                    "{}--router dropless, or leave it out",
                    router.name(), unpadded.counts_known() ? "" : "--padding none or "));
  }
  if (scenario.fidelity == routing::Fidelity::counts) {
    refuse("counts do not say which routes are of one token: use --fidelity tokens or auto");
  }
  if (scenario.scores.trace != nullptr && routing::has_exact_counts(scenario.routing_job())) {
    refuse(
        fmt::format("{} holds counts, which do not say which routes are of one token: use "
                    "--routing trace-repeat:FILE, which draws tokens from their popularity",
                    scenario.scores.name()));
  }
  if (scenario.dedup == Deduplication::node && !scenario.has_aligned_groups()) {
    refuse(
        fmt::format("expert-parallel groups of {} GPUs have parts of nodes of {}, so that a GPU "
                    "need not have its counterpart in each: choose --expert-parallel as a "
                    "multiple or a divisor of {}, or --dedup gpu",
                    scenario.expert_parallel, scenario.cluster->gpus_per_domain,
                    scenario.cluster->gpus_per_domain));
  }
}

void check_conditions(const Scenario& scenario) {
  const auto look = [&](const char* flag, const GpuFactors& factors) {
    for (const GpuFactor& slow : factors) {
      if (slow.gpu < scenario.gpus) continue;
      throw UsageError(fmt::format("{}: there is no GPU {}: --gpus {} are numbered from 0", flag,
                                   slow.gpu, scenario.gpus));
    }
  };
  look("--slow-gpu", scenario.conditions.slow_gpus);
  look("--slow-link", scenario.conditions.slow_links);
  if (scenario.network == Network::flows && !scenario.conditions.overlap.none()) {
    throw UsageError(
        "--overlap-slowdown: exact flows do not slow down for compute; use --network fast");
  }
}

}  // namespace

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
  check_size(scenario);
  check_conditions(scenario);
  if (!scenario.has_moe() && scenario.model->ffn == 0) {
    throw UsageError(fmt::format(
        "--router dense: every layer of model {} holds experts, and it names no dense FFN to put "
        "in their place: choose another router, or a model with a dense ffn",
        scenario.model_name));
  }
  if (!scenario.has_moe()) return;
  check_router(scenario);
  check_deduplication(scenario);
  routing::check(scenario.routing_job());
}

}  // namespace moesim::scenario
