#include "sim/step/prices/dispatcher_times.hpp"

#include <memory>
#include <string>

#include "sim/step/step_model.hpp"
#include "sim/step/step_runner.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

using profile::DispatcherStage;

// Four H100s in domains of so many, one expert each.
scenario::Scenario four_gpus(const std::string& dispatcher, int per_domain) {
  scenario::Scenario scenario = support::scenario_of("mixtral-8x7b", 3);
  scenario.profile = std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm"));
  auto cluster = cluster::Cluster::load("hgx-h100");
  cluster.gpus_per_node = cluster.gpus_per_domain = cluster.nics_per_node = per_domain;
  scenario.cluster = std::make_shared<cluster::Cluster>(cluster);
  scenario.gpus = scenario.expert_parallel = scenario.experts = 4;
  scenario.router = routing::parse_router("dropless", 2);
  scenario.mode = scenario::Mode::prefill;
  scenario.replicas = 1;
  scenario.dispatcher =
      std::make_shared<profile::Dispatcher>(profile::Dispatcher::load(dispatcher));
  scenario.dispatcher_name = dispatcher;
  return scenario;
}

// GPU s sends to_gpu[s][d] tokens' rows to GPU d, of to_node[s][n] tokens for node n.
routing::LayerRouting layer_of(bool two_nodes) {
  routing::LayerRouting layer;
  layer.copies.to_gpu = {1, 2, 3, 4, 10, 20, 30, 40, 5, 6, 7, 8, 50, 60, 70, 80};
  layer.copies.to_node = {2, 5, 25, 55, 9, 11, 90, 99};
  if (!two_nodes) layer.copies.to_node = {7, 80, 20, 189};
  layer.kept_rows = layer.copies.to_gpu;
  layer.ir_rows.assign(4, 0);
  return layer;
}

}  // namespace

TEST_CASE("the busiest of two nodes stages, forwards and receives rows per node") {
  const scenario::Scenario scenario = four_gpus("deepep", 2);
  const DispatcherTimes times(scenario);
  // GPU 3 stages 90 + 99 rows, forwards what GPUs 1 and 3 send to GPUs 2 and 3 (70 + 150), more
  // than the 132 it receives.
  const profile::DispatchLoad there = times.load(layer_of(true), 0, DispatcherStage::dispatch);
  CHECK(there.copies == 189 + 220);
  CHECK(there.link_rows == 30 + 70);  // of these 220 all but its own
  CHECK(there.nic_rows == 90);
  CHECK(there.tokens == 4096);
  // Back it copies the 132 to those who forward, and sums the 220.
  const profile::DispatchLoad back = times.load(layer_of(true), 0, DispatcherStage::combine);
  CHECK(back.copies == 132 + 220);
  CHECK(back.nic_rows == 90);
}

TEST_CASE("inside a domain a GPU copies what it sends or receives, whichever is more") {
  const scenario::Scenario scenario = four_gpus("trtllm", 4);
  const profile::DispatchLoad load =
      DispatcherTimes(scenario).load(layer_of(false), 0, DispatcherStage::dispatch);
  CHECK(load.copies == 260);              // all that GPU 3 sends
  CHECK(load.link_rows == 50 + 60 + 70);  // but to itself
  CHECK(load.nic_rows == 0);
}

TEST_CASE("from counts, tokens that go to a place are estimated") {
  // Every GPU has 4,096 tokens, each with two of four experts, and half of them at each expert. A
  // node holds two: 4096 x (1 - 2/4 x 1/3) of the tokens go there, 2,048 of them to each GPU.
  const scenario::Scenario scenario = four_gpus("deepep", 2);
  routing::LayerRouting layer;
  layer.kept_rows.assign(16, 2048);
  const profile::DispatchLoad load =
      DispatcherTimes(scenario).load(layer, 0, DispatcherStage::dispatch);
  const double to_node = 4096 * (1 - 2.0 / 4 * 1 / 3);
  CHECK(load.nic_rows == Approx(to_node).margin(1));
  CHECK(load.copies ==
        Approx(2 * to_node + 4 * 2048).margin(2));  // staged, and forwarded or received
  CHECK(load.link_rows == 2 * 2048);
}

TEST_CASE("rows per expert go to it by themselves, and the fullest expert counts") {
  const scenario::Scenario scenario = four_gpus("low-latency", 2);
  const profile::DispatchLoad load =
      DispatcherTimes(scenario).load(layer_of(true), 0, DispatcherStage::dispatch);
  CHECK(load.copies == 260);
  CHECK(load.link_rows == 70);      // GPU 3 to GPU 2
  CHECK(load.nic_rows == 50 + 60);  // GPU 3 to GPUs 0 and 1
  CHECK(load.expert_rows == 4 + 40 + 8 + 80);
}

TEST_CASE("a step takes the law's time for its exchanges, of the kept rows alone") {
  const scenario::Scenario scenario = four_gpus("low-latency", 2);
  routing::ReplicaRouting routing;
  routing.layers.assign(3, layer_of(true));
  StepModel model(scenario);
  const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
  const DispatcherTimes times(scenario);
  int exchanges = 0;
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (model.direction(op) == Direction::none) continue;
    const bool out = model.direction(op) == Direction::to_experts;
    const DispatcherStage stage = out ? DispatcherStage::dispatch : DispatcherStage::combine;
    CHECK(model.program().operations[static_cast<std::size_t>(op)].name ==
          (out ? "low-latency:dispatch" : "low-latency:combine"));
    CHECK(durations.of(op, 0).us() ==
          Approx(times.time(routing.layers[0], 0, stage).time_us).margin(1e-5));
    ++exchanges;
  }
  CHECK(exchanges == 6);
  // No counts are gathered first: its rows have places of their own.
  for (const engine::Operation& operation : model.program().operations) {
    CHECK(operation.name != "nccl:all_gather");
    CHECK(operation.name != "counts_to_host");
  }
  StepRunner runner(model);
  CHECK(runner.choice().reason == "all-to-alls by the law of low-latency");
  CHECK(runner.run(&routing, 0, StepModel::no_errors).end_of(0).us() > 0);
  CHECK(model.provenance().find("dispatcher low-latency") != std::string::npos);
}

TEST_CASE("a slow link stretches what a dispatcher has on links, not its kernels and notify") {
  scenario::Scenario scenario = four_gpus("deepep", 2);
  routing::ReplicaRouting routing;
  routing.layers.assign(3, layer_of(true));  // some tens of rows
  const auto end_us = [&] {
    StepModel model(scenario);
    return StepRunner(model).run(&routing, 0, StepModel::no_errors).end_of(0).us();
  };
  const double alone_us = end_us();
  const DispatcherTimes times(scenario);
  double expected_us = alone_us;
  for (const DispatcherStage stage : {DispatcherStage::dispatch, DispatcherStage::combine}) {
    const double one = times.time(routing.layers[0], 0, stage).time_us;
    expected_us += 3 * (times.time(routing.layers[0], 0, stage, 10).time_us - one);
  }
  scenario.conditions.slow_links = {{1, 10}};
  CHECK(end_us() == Approx(expected_us).epsilon(1e-6));
  CHECK(end_us() < 1.5 * alone_us);
}

}  // namespace moesim::step
