#include "sim/scenario/exchange.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

// One-hot products need blocks of equal size.
void check_dispatch(const Scenario& scenario, Use use) {
  if (use == Use::routing || !scenario.has_moe()) return;
  if (scenario.dispatch != Dispatch::einsum) return;
  const routing::RouterConfig& router = scenario.router;
  const auto refuse = [&](const char* why) {
    throw UsageError(
        fmt::format("--dispatch einsum: router {} {}; use --dispatch index", router.name(), why));
  };
  if (!router.pads_exchange()) {
    refuse(router.has_capacity()
               ? "without padding has no blocks of equal size for one-hot products"
               : "sends no blocks of equal size for one-hot products");
  }
  if (const char* why = router.kind->no_one_hot; why != nullptr) refuse(why);
}

void check_deduplication(const Scenario& scenario, Use use) {
  if (use == Use::routing || !scenario.has_moe()) return;
  if (scenario.dedup == Deduplication::none) return;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(
        fmt::format("--dedup {}: {}", name_in(deduplication_names, scenario.dedup), why));
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

}  // namespace moesim::scenario
