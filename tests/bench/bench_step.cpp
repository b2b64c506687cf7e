// Scenarios per second on one core: the paper's model on 32 GPUs, every layer and rank routed by
// itself. Run with --benchmark_repetitions=5 --benchmark_report_aggregates_only=true.
#include <benchmark/benchmark.h>

#include "sim/scenario/options.hpp"
#include "sim/step/step_model.hpp"
#include "sim/study/sweep/evaluate.hpp"

namespace moesim::study {
namespace {

scenario::Scenario paper_scenario(scenario::DocumentCache& documents, const std::string& mode,
                                  int replicas) {
  return scenario::resolve({{"model", "llama2-7b-moe8"},
                            {"profile", "a100-sxm-80gb"},
                            {"gpus", "32"},
                            {"expert-parallel", "8"},
                            {"router", "top2+fr+ir"},
                            {"capacity-factor", "1.5"},
                            {"dispatch", "einsum"},
                            {"checkpointing", "full"},
                            {"mode", mode},
                            {"replicas", std::to_string(replicas)}},
                           documents);
}

// Sixteen replicas of a scenario whose routing is not cached.
void scenario_routing_not_cached(benchmark::State& state) {
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = paper_scenario(documents, "prefill", 16);
  for ([[maybe_unused]] auto iteration : state) {
    routing::RoutingCache cache;
    benchmark::DoNotOptimize(evaluate(scenario, cache).step_ms);
  }
  state.counters["scenarios_per_s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["tokens_routed_per_s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 16.0 * 16.0 * 32.0 * 16384.0,
                         benchmark::Counter::kIsRate);
}
BENCHMARK(scenario_routing_not_cached)->Unit(benchmark::kMillisecond);

// The same with the routing in the cache: what a sweep over dispatch, checkpointing, clusters or
// profiles pays per scenario.
void scenario_routing_cached(benchmark::State& state, const std::string& mode) {
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = paper_scenario(documents, mode, 16);
  routing::RoutingCache cache;
  benchmark::DoNotOptimize(evaluate(scenario, cache).step_ms);
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(evaluate(scenario, cache).step_ms);
  }
  state.counters["scenarios_per_s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(scenario_routing_cached, prefill, std::string("prefill"))
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(scenario_routing_cached, train, std::string("train"))
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moesim::study

BENCHMARK_MAIN();
