// The cost of simulating one training step of a 32-layer MoE (Mixtral's layers with 64 experts, EP
// 64, dropless, skewed counts of their own on every layer and rank), through the fast network.
//   step/gpus        nothing folded: every rank simulated
//   step_cold/gpus   the same with all that comes before: the program, the topology, the prices
//   step_found/gpus  all groups have the counts of the first: found by comparing, and folded
//   step_folded/gpus one group is given and stands for all: folded
//   step_balanced/gpus the same, and every expert gets the same
//   step_flows/gpus  as step, but every exchange as exact flows on the links of the whole cluster;
//                    over_fast: its step over that of the fast network
//   scenarios/threads 64 GPUs, new counts drawn for each
// A step counts the durations of all operations from the counts, and the execution; the counts are
// given. Scenarios also count drawing them. run_scale draws the plot.
#include <benchmark/benchmark.h>

#include <sys/resource.h>

#include <memory>
#include <thread>

#include "sim/cluster/rank_placement.hpp"
#include "sim/engine/dataflow.hpp"
#include "sim/network/exchange/port_clock.hpp"
#include "sim/network/flows/flow_fabric.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "sim/scenario/options.hpp"
#include "sim/step/exchanges/exchange_traffic.hpp"
#include "tests/support/skewed_counts.hpp"

namespace moesim {
namespace {

constexpr int experts = 64;
constexpr double skew = 0.5;

scenario::Scenario scenario_of(int gpus) {
  scenario::DocumentCache documents;
  return scenario::resolve({{"model", "mixtral-8x7b"},
                            {"profile", "h100-sxm"},
                            {"cluster", "hgx-h100"},
                            {"gpus", std::to_string(gpus)},
                            {"experts", std::to_string(experts)},
                            {"expert-parallel", std::to_string(experts)},
                            {"router", "top2"},
                            {"micro-batch", "1"},
                            {"replicas", "1"}},
                           documents);
}

// One job, ready to be simulated with any counts.
struct Job {
  explicit Job(int gpus)
      : scenario(scenario_of(gpus)),
        model(scenario),
        topology(network::topology_of(*scenario.cluster, cluster::contiguous_placement(gpus))),
        clock(topology) {}

  Picoseconds step(const routing::ReplicaRouting& routing, engine::Folding folding) {
    const step::UnpaddedTraffic traffic(model, routing);
    const engine::Durations durations =
        model.unpadded_durations(routing, step::StepModel::no_errors);
    const engine::Execution execution =
        engine::run_alone(model.program(), durations, {&traffic, &clock}, folding);
    return execution.end_of(execution.slowest_rank());
  }
  std::int64_t rows() const { return scenario.tokens_per_gpu * scenario.router.top_k; }

  scenario::Scenario scenario;
  step::StepModel model;
  network::Topology topology;
  network::PortClock clock;
};

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

enum class Counts { each_its_own, groups_alike, one_group, balanced };

routing::ReplicaRouting draw(const Job& job, Counts counts) {
  const support::SkewedCounts source(experts, job.rows(), counts == Counts::balanced ? 0 : skew, 1);
  const bool one = counts == Counts::one_group || counts == Counts::balanced;
  const int period = counts == Counts::each_its_own ? 0 : counts == Counts::balanced ? 1 : experts;
  return source.draw(job.scenario.model->moe_layers(), one ? experts : job.scenario.gpus, 0,
                     period);
}

void measure(benchmark::State& state, Counts counts, engine::Folding folding) {
  const int gpus = static_cast<int>(state.range(0));
  Job job(gpus);
  const routing::ReplicaRouting routing = draw(job, counts);
  Picoseconds step = job.step(routing, folding);  // prices are kept from here on
  for ([[maybe_unused]] auto iteration : state) {
    step = job.step(routing, folding);
    benchmark::DoNotOptimize(step);
  }
  state.counters["step_ms"] = step.ms();
  state.counters["peak_gib"] = peak_gib();
}

void step(benchmark::State& state) { measure(state, Counts::each_its_own, engine::Folding::off); }
void step_found(benchmark::State& state) {
  measure(state, Counts::groups_alike, engine::Folding::on);
}
void step_folded(benchmark::State& state) {
  measure(state, Counts::one_group, engine::Folding::on);
}

void step_cold(benchmark::State& state) {
  const int gpus = static_cast<int>(state.range(0));
  const routing::ReplicaRouting routing = draw(Job(gpus), Counts::each_its_own);
  for ([[maybe_unused]] auto iteration : state) {
    Job job(gpus);
    benchmark::DoNotOptimize(job.step(routing, engine::Folding::off));
  }
  state.counters["peak_gib"] = peak_gib();
}
void step_balanced(benchmark::State& state) {
  measure(state, Counts::balanced, engine::Folding::on);
}

void step_flows(benchmark::State& state) {
  Job job(static_cast<int>(state.range(0)));
  const routing::ReplicaRouting routing = draw(job, Counts::each_its_own);
  const Picoseconds fast = job.step(routing, engine::Folding::off);
  const step::UnpaddedTraffic traffic(job.model, routing);
  Picoseconds exact;
  for ([[maybe_unused]] auto iteration : state) {
    network::FlowFabric fabric(job.topology);
    const engine::Execution execution = engine::run(
        job.model.program(), job.model.unpadded_durations(routing, step::StepModel::no_errors),
        fabric, &traffic);
    exact = execution.end_of(execution.slowest_rank());
  }
  state.counters["step_ms"] = exact.ms();
  state.counters["over_fast"] = exact.us() / fast.us();
  state.counters["peak_gib"] = peak_gib();
}

void scenarios(benchmark::State& state) {
  constexpr int count = 10'000;
  const auto threads = static_cast<int>(state.range(0));
  std::vector<std::unique_ptr<Job>> jobs;
  for (int thread = 0; thread < threads; ++thread) jobs.push_back(std::make_unique<Job>(experts));
  const support::SkewedCounts source(experts, jobs.front()->rows(), skew, 1);
  std::vector<double> steps(count);
  for ([[maybe_unused]] auto iteration : state) {
    std::vector<std::thread> workers;
    for (int thread = 0; thread < threads; ++thread) {
      workers.emplace_back([&, thread] {
        Job& job = *jobs[static_cast<std::size_t>(thread)];
        for (int number = thread; number < count; number += threads) {
          const auto routing = source.draw(job.scenario.model->moe_layers(), experts,
                                           static_cast<std::uint32_t>(number));
          steps[static_cast<std::size_t>(number)] = job.step(routing, engine::Folding::off).ms();
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
  }
  double sum = 0;
  for (const double ms : steps) sum += ms;
  state.counters["mean_step_ms"] = sum / count;
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("gpus")->RangeMultiplier(4)->Range(64, 16384)->Unit(benchmark::kMillisecond);
}

BENCHMARK(step)->Apply(sizes);
BENCHMARK(step_cold)->Apply(sizes);
BENCHMARK(step_found)->Apply(sizes);
BENCHMARK(step_folded)->Apply(sizes);
BENCHMARK(step_balanced)->Apply(sizes);
BENCHMARK(step_flows)->ArgName("gpus")->Arg(64)->Arg(256)->Unit(benchmark::kMillisecond);
BENCHMARK(scenarios)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(1)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace moesim

BENCHMARK_MAIN();
