// The fast path of an exchange: bounds of every rank's finish, beside the exact flows.
#include <benchmark/benchmark.h>

#include "sim/network/flows/flow_times.hpp"
#include "sim/network/ports/port_bounder.hpp"
#include "tests/sim/network/exchange_shapes.hpp"
#include "tests/support/run_exchange.hpp"

namespace {

using namespace moesim;
using namespace moesim::network;

enum Shape { on_switch, on_node8, on_tree2 };
enum Sizes { uniform, zipf, routed };

Topology shape(std::int64_t kind, int ranks) {
  return kind == on_node8   ? ideal_node8(ranks)
         : kind == on_tree2 ? ideal_tree2(ranks)
                            : ideal_switch(ranks);
}

ByteMatrix sizes(std::int64_t kind, int ranks) {
  return kind == zipf     ? zipf_matrix(ranks)
         : kind == routed ? routed_matrix(ranks)
                          : uniform_matrix(ranks);
}

void fast_path(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const Topology topology = shape(state.range(1), ranks);
  const ByteMatrix bytes = sizes(state.range(2), ranks);
  PortBounder bounder(topology);
  PortBound bound;
  for (auto _ : state) {
    bounder.bound(bytes, {}, bound);
    benchmark::DoNotOptimize(bound.lower);
  }
  state.counters["slack_percent"] = 100 * bound.slack();
}
BENCHMARK(fast_path)
    ->ArgNames({"ranks", "shape", "sizes"})
    ->ArgsProduct({{8, 64, 512}, {on_switch, on_node8, on_tree2}, {uniform, zipf, routed}})
    ->Unit(benchmark::kMicrosecond);

void refined(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const Topology topology = shape(state.range(1), ranks);
  const ByteMatrix bytes = sizes(state.range(2), ranks);
  PortBounder bounder(topology);
  const PortBound first = bounder.bound(bytes);
  PortBound bound;
  for (auto _ : state) {
    bound = first;
    bounder.refine(bytes, {}, bound);
    benchmark::DoNotOptimize(bound.lower);
  }
  state.counters["slack_percent"] = 100 * bound.slack();
}
BENCHMARK(refined)
    ->ArgNames({"ranks", "shape", "sizes"})
    ->ArgsProduct({{8, 64, 512}, {on_switch}, {zipf, routed}})
    ->ArgsProduct({{64}, {on_node8, on_tree2}, {zipf, routed}})
    ->Unit(benchmark::kMicrosecond);

void exact_flows(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const Topology topology = shape(state.range(1), ranks);
  const ByteMatrix bytes = sizes(state.range(2), ranks);
  for (auto _ : state) benchmark::DoNotOptimize(run_exchange(topology, bytes).makespan);
}
BENCHMARK(exact_flows)
    ->ArgNames({"ranks", "shape", "sizes"})
    ->ArgsProduct({{8, 64}, {on_switch, on_node8}, {uniform, zipf, routed}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
