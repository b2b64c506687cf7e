// Expert-parallel groups that pad to blocks of different sizes, in one step.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/routing/jobs/group_blocks.hpp"
#include "sim/step/exchanges/exchange_traffic.hpp"
#include "sim/step/memory.hpp"
#include "sim/step/step_runner.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

using Blocks = std::vector<std::int64_t>;  // [group]

// 8 GPUs a group, two MoE layers, blocks as long as the longest of the group.
scenario::Scenario padded_scenario(int groups) {
  scenario::Scenario scenario = support::small_prefill();
  scenario.gpus = 8 * groups;
  scenario.router.drops = false;
  scenario.router.padding = routing::Padding::busiest;
  return scenario;
}

// Blocks that are full, of each layer.
routing::ReplicaRouting routing_of(const scenario::Scenario& scenario, const Blocks& first,
                                   const Blocks& second) {
  routing::ReplicaRouting routing = support::equal_rows(scenario, 0);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const Blocks& blocks = layer == 0 ? first : second;
    std::vector<std::int32_t>& kept = routing.layers[layer].kept_rows;
    const std::size_t cells = kept.size() / blocks.size();
    for (std::size_t at = 0; at < kept.size(); ++at) {
      kept[at] = static_cast<std::int32_t>(blocks[at / cells]);
    }
    set_blocks(blocks, routing.layers[layer]);
  }
  return routing;
}

std::vector<Picoseconds> ends_of(const scenario::Scenario& scenario, const Blocks& first,
                                 const Blocks& second) {
  StepModel model(scenario);
  const routing::ReplicaRouting routing = routing_of(scenario, first, second);
  const engine::Execution execution = StepRunner(model).run(&routing, 0, StepModel::no_errors);
  std::vector<Picoseconds> ends;
  for (int gpu = 0; gpu < scenario.gpus; ++gpu) ends.push_back(execution.end_of(gpu));
  return ends;
}

}  // namespace

TEST_CASE("groups with blocks of different sizes take as long as each does alone") {
  // A forward pass, in which groups do not meet.
  const scenario::Scenario both = padded_scenario(2);
  const scenario::Scenario alone = padded_scenario(1);
  const std::vector<Picoseconds> ends = ends_of(both, {4096, 1024}, {1024, 512});
  const Picoseconds first = ends_of(alone, {4096}, {1024}).front();
  const Picoseconds second = ends_of(alone, {1024}, {512}).front();
  REQUIRE(second < first);
  for (int gpu = 0; gpu < 8; ++gpu) {
    CHECK(ends[static_cast<std::size_t>(gpu)] == first);
    CHECK(ends[static_cast<std::size_t>(gpu + 8)] == second);
  }
}

TEST_CASE("exact flows take the measured time of each group's blocks") {
  scenario::Scenario scenario = padded_scenario(2);
  const std::vector<Picoseconds> fast = ends_of(scenario, {4096, 1024}, {1024, 512});
  scenario.network = scenario::Network::flows;
  const std::vector<Picoseconds> exact = ends_of(scenario, {4096, 1024}, {1024, 512});
  for (std::size_t gpu = 0; gpu < 16; ++gpu) {
    CHECK(exact[gpu].us() == Approx(fast[gpu].us()).epsilon(1e-6));
  }
}

TEST_CASE("exact flows take the time of each layer's blocks, inside a domain and between them") {
  for (const int members : {8, 16}) {
    CAPTURE(members);
    scenario::Scenario scenario = padded_scenario(members / 8);
    scenario.expert_parallel = members;
    scenario.experts = members;
    const Picoseconds fast = ends_of(scenario, {4096}, {16}).front();
    scenario.network = scenario::Network::flows;
    const Picoseconds falling = ends_of(scenario, {4096}, {16}).front();
    const Picoseconds rising = ends_of(scenario, {16}, {4096}).front();
    CHECK(falling.us() == Approx(rising.us()).epsilon(1e-6));
    CHECK(falling.us() == Approx(fast.us()).epsilon(1e-6));
    scenario.conditions.slow_links = {{0, 1.01}};
    CHECK(ends_of(scenario, {16}, {4096}).front() > rising);
  }
}

// Groups of 6 on nodes of 8: the first one lies in one node, the others cross.
TEST_CASE("links between nodes take the time of the farthest group") {
  scenario::Scenario scenario = padded_scenario(3);
  scenario.expert_parallel = 6;
  scenario.experts = 6;
  for (const std::int64_t rows : {16, 2048}) {
    CAPTURE(rows);
    const Blocks blocks(4, rows);
    const auto slowest_us = [&](scenario::Network network) {
      scenario.network = network;
      const std::vector<Picoseconds> ends = ends_of(scenario, blocks, blocks);
      return std::max_element(ends.begin(), ends.end())->us();
    };
    CHECK(slowest_us(scenario::Network::flows) ==
          Approx(slowest_us(scenario::Network::fast)).epsilon(0.002));
  }
}

TEST_CASE("a slow link stretches the exchange of its group's own blocks") {
  scenario::Scenario both = padded_scenario(2);
  scenario::Scenario alone = padded_scenario(1);
  both.conditions.slow_links = {{9, 3}};
  alone.conditions.slow_links = {{1, 3}};
  // Short exchanges are latency for a larger share, which a slow link does not change.
  CHECK(ends_of(both, {4096, 16}, {4096, 16})[9] == ends_of(alone, {16}, {16})[1]);
}

TEST_CASE("grouped IR calls are priced with the blocks of their group") {
  scenario::Scenario scenario = padded_scenario(2);
  scenario.router.drops = true;
  scenario.router.padding = routing::Padding::capacity;
  scenario.router.capacity_scope = routing::CapacityScope::group;
  scenario.router.rectification = routing::Rectification::gpu;
  scenario.router.ir_compute = routing::IrCompute::grouped;
  scenario::Scenario alone = scenario;
  alone.gpus = 8;
  const auto end = [](const scenario::Scenario& asked, const Blocks& blocks, std::size_t gpu) {
    StepModel model(asked);
    routing::ReplicaRouting routing = routing_of(asked, blocks, blocks);
    for (routing::LayerRouting& layer : routing.layers) {
      std::fill(layer.ir_rows.begin(), layer.ir_rows.end(), 100);
    }
    return StepRunner(model).run(&routing, 0, StepModel::no_errors).end_of(static_cast<int>(gpu));
  };
  CHECK(end(scenario, {4096, 1000}, 8) == end(alone, {1000}, 0));
}

TEST_CASE("the empty rows that are sent are those of each group's blocks") {
  const scenario::Scenario scenario = padded_scenario(2);
  routing::ReplicaRouting routing = routing_of(scenario, {1024, 256}, {256, 1024});
  for (routing::LayerRouting& layer : routing.layers) {
    std::fill(layer.kept_rows.begin(), layer.kept_rows.end(), 256);
  }
  RowPeak peak(scenario);
  peak.take(routing);
  // 2 x 256 of 1,024 + 256 rows.
  CHECK(peak.empty_share() == Approx(0.6));
  CHECK(peak.rows().block == 1024);
}

TEST_CASE("groups with blocks of the same size have the same matrix") {
  const scenario::Scenario scenario = padded_scenario(3);
  StepModel model(scenario);
  const routing::ReplicaRouting routing = routing_of(scenario, {64, 32, 64}, {8, 8, 8});
  const PaddedTraffic traffic(model, routing);
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (!traffic.is_uneven(op)) continue;
    const bool first = model.moe_layer(op) == 0;
    CHECK((traffic.pattern(op, 0) == traffic.pattern(op, 1)) != first);
    CHECK(traffic.pattern(op, 0) == traffic.pattern(op, 2));
    ByteMatrix bytes(8);
    traffic.fill(op, 1, bytes);
    CHECK(bytes.at(0, 7) == (first ? 32 : 8) * static_cast<std::int64_t>(model.row_bytes(op)));
  }
}

}  // namespace moesim::step
