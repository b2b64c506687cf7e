#include "sim/scenario/conditions.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/statistics.hpp"
#include "sim/step/step_runner.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

scenario::Scenario small_scenario() { return support::small_prefill(); }

routing::ReplicaRouting padded_routing(const scenario::Scenario& scenario) {
  routing::ReplicaRouting routing;
  for (int layer = 0; layer < scenario.model->moe_layers(); ++layer) {
    routing::LayerRouting one;
    one.capacity = scenario.router.capacity(scenario.tokens_per_gpu, scenario.experts);
    one.exchanged_capacity = one.capacity;
    routing.layers.push_back(one);
  }
  return routing;
}

engine::Execution simulate(const scenario::Scenario& scenario, int replica = 0) {
  StepModel model(scenario);
  StepRunner runner(model);
  const routing::ReplicaRouting routing = padded_routing(scenario);
  return runner.run(&routing, replica, StepModel::no_errors);
}

// Sums over the operations of a balanced step.
struct Sums {
  Picoseconds compute, exchange;
};
Sums sums_of(const scenario::Scenario& scenario) {
  StepModel model(scenario);
  const routing::ReplicaRouting routing = padded_routing(scenario);
  const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
  Sums sums;
  for (std::size_t op = 0; op < durations.uniform.size(); ++op) {
    const bool exchange = model.program().operations[op].groups >= 0;
    (exchange ? sums.exchange : sums.compute) += durations.uniform[op];
  }
  return sums;
}

}  // namespace

TEST_CASE("a slow GPU delays its group by exactly what it computes longer") {
  scenario::Scenario scenario = small_scenario();
  const Sums sums = sums_of(scenario);
  scenario.conditions.slow_gpus = {{5, 1.5}};
  const engine::Execution execution = simulate(scenario);
  // The group of GPUs 0 .. 7 waits for GPU 5 at every exchange; after the last one it computes
  // alone. Half as much again, each operation rounded to a picosecond.
  const double slow =
      1.5 * static_cast<double>(sums.compute.count) + static_cast<double>(sums.exchange.count);
  CHECK(static_cast<double>(execution.end_of(5).count) == Approx(slow).margin(100));
  CHECK(execution.slowest_rank() == 5);
  CHECK(execution.end_of(4) < execution.end_of(5));
  // The other group (8 .. 15) never meets it in a forward pass.
  for (int rank = 8; rank < 16; ++rank) {
    CHECK(execution.end_of(rank) == sums.compute + sums.exchange);
  }
}

TEST_CASE("a slow link delays the exchanges of its group by its factor") {
  scenario::Scenario scenario = small_scenario();
  const Sums sums = sums_of(scenario);
  scenario.conditions.slow_links = {{9, 3}};
  const engine::Execution execution = simulate(scenario);
  CHECK(execution.end_of(0) == sums.compute + sums.exchange);
  // Four all-to-alls; what they take without bytes is no matter of bandwidth.
  const double latency_us =
      4 * scenario.profile->collective(profile::Collective::all_to_all, 8, 1).time_us;
  CHECK(latency_us > 0.01 * sums.exchange.us());
  CHECK(
      execution.end_of(12).us() ==
      Approx(sums.compute.us() + latency_us + 3 * (sums.exchange.us() - latency_us)).epsilon(1e-9));
  // Exact flows, of which the measured time is a part latency: the slow port sets the pace too.
  scenario.network = scenario::Network::flows;
  const engine::Execution flows = simulate(scenario);
  CHECK(flows.end_of(0).us() == Approx((sums.compute + sums.exchange).us()).epsilon(1e-9));
  CHECK(flows.end_of(9).us() == Approx(execution.end_of(9).us()).epsilon(1e-9));
}

TEST_CASE("on one node exact flows of equal blocks take the measured time") {
  scenario::Scenario scenario = small_scenario();
  scenario.gpus = 8;
  const engine::Execution fast = simulate(scenario);
  scenario.network = scenario::Network::flows;
  const engine::Execution flows = simulate(scenario);
  CHECK(flows.end_of(0).us() == Approx(fast.end_of(0).us()).epsilon(1e-9));
}

TEST_CASE("exact flows take the measured time through switches too") {
  // PCIe: every two GPUs share a host bridge, which holds them back.
  scenario::Scenario scenario = small_scenario();
  scenario.cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load("pcie-l40s"));
  scenario.gpus = 8;
  const engine::Execution fast = simulate(scenario);
  scenario.network = scenario::Network::flows;
  CHECK(simulate(scenario).end_of(0).us() == Approx(fast.end_of(0).us()).epsilon(1e-9));
  // A slow port that is not the bottleneck changes nothing yet: the busiest link is a switch.
  scenario.conditions.slow_links = {{3, 1.01}};
  CHECK(simulate(scenario).end_of(0).us() == Approx(fast.end_of(0).us()).epsilon(1e-9));
}

TEST_CASE("jitter spreads kernels around their median and repeats with its seed") {
  engine::Program program;
  program.ranks = 4096;
  program.add({});
  program.add({});
  const auto draw = [&](std::uint64_t seed, int replica) {
    engine::Durations durations;
    durations.uniform = {Picoseconds(1'000'000'000), Picoseconds(1'000'000'000)};
    durations.per_rank.resize(2);
    scenario::Conditions conditions;
    conditions.jitter = 0.1;
    disturb(conditions, program, seed, replica, durations);
    return durations.per_rank;
  };
  const auto first = draw(1, 0);
  CHECK(first == draw(1, 0));
  CHECK(first != draw(2, 0));
  CHECK(first != draw(1, 1));
  CHECK(first[0] != first[1]);
  std::vector<double> logs;
  for (const Picoseconds time : first[0]) logs.push_back(std::log(time.us() / 1000));
  // Standard errors of 4,096 draws: of the median 1.25 x 0.1 / 64 = 0.002, of sigma
  // 0.1 / sqrt(2 x 4096) = 0.0011; four of each.
  CHECK(std::abs(median(logs)) < 0.008);
  double squares = 0;
  for (const double log : logs) squares += log * log;
  CHECK(std::sqrt(squares / 4096) == Approx(0.1).margin(0.0044));
}

TEST_CASE("a step with jitter waits for the slowest and is slower than without") {
  scenario::Scenario scenario = small_scenario();
  const Picoseconds calm = simulate(scenario).end_of(0);
  scenario.conditions.jitter = 0.05;
  for (int replica = 0; replica < 3; ++replica) {
    const engine::Execution execution = simulate(scenario, replica);
    CHECK(execution.end_of(execution.slowest_rank()) > calm);
  }
}

TEST_CASE("conditions that cannot be are refused") {
  scenario::Scenario scenario = small_scenario();
  scenario.conditions.slow_gpus = {{16, 2}};
  CHECK_THROWS_AS(check(scenario), UsageError);
  scenario.conditions.slow_gpus = {{15, 2}};
  CHECK_NOTHROW(check(scenario));
  scenario.conditions.slowdowns = {1.1, 1};
  scenario.network = scenario::Network::flows;
  CHECK_THROWS_AS(check(scenario), UsageError);
}

TEST_CASE("conditions are written as they are typed") {
  CHECK(scenario::text_of(scenario::GpuFactors{{3, 1.5}, {7, 2}}) == "3:1.5+7:2");
  CHECK(scenario::text_of(scenario::GpuFactors{}) == "none");
  CHECK(scenario::text_of(engine::Slowdowns{1.1, 1.25}) == "1.1:1.25");
}

TEST_CASE("overlapped gradients make no step longer, whatever disturbs it") {
  scenario::Scenario scenario = support::scenario_of("llama2-7b-moe8", 4);
  scenario.replicas = 1;
  const auto us_of = [&](scenario::GradientOverlap overlap) {
    scenario.gradient_overlap = overlap;
    const engine::Execution execution = simulate(scenario);
    return execution.end_of(execution.slowest_rank()).us();
  };
  const auto saved_us = [&] {
    return us_of(scenario::GradientOverlap::none) - us_of(scenario::GradientOverlap::gradient);
  };
  const double undisturbed = saved_us();
  CHECK(undisturbed > 0);
  scenario.conditions.slow_links = {{0, 4}};
  CHECK(saved_us() == Approx(undisturbed).epsilon(0.1));  // the link is slow, not the pass
  scenario.conditions.slow_links = {};
  scenario.conditions.slow_gpus = {{5, 1.5}};
  CHECK(saved_us() > 0);
  scenario.conditions.slow_gpus = {};
  scenario.conditions.slowdowns = {1, 4};
  CHECK(saved_us() > 0);
}

}  // namespace moesim::step
