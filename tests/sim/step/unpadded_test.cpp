#include "sim/step/exchanges/exchange_traffic.hpp"

#include <algorithm>
#include <cmath>
#include <thread>

#include "sim/base/error.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/engine/dataflow.hpp"
#include "sim/network/exchange/port_clock.hpp"
#include "sim/network/flows/flow_fabric.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/step/step_runner.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/skewed_counts.hpp"

namespace moesim::step {
namespace {

scenario::Scenario ragged_scenario(int gpus, int expert_parallel, int experts) {
  scenario::Scenario scenario;
  scenario.profile = std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm"));
  auto model = model::Model::load("mixtral-8x7b");
  model.layers = 3;
  scenario.model = std::make_shared<model::Model>(model);
  scenario.cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  scenario.gpus = gpus;
  scenario.expert_parallel = expert_parallel;
  scenario.experts = experts;
  scenario.router = routing::parse_router("top2", 0);
  scenario.sequence_length = 2048;
  scenario.micro_batch = 1;
  scenario.tokens_per_gpu = 2048;
  scenario.replicas = 1;
  return scenario;
}

routing::ReplicaRouting counts_of(const scenario::Scenario& scenario, int gpus, int period = 0) {
  const support::SkewedCounts source(scenario.experts, scenario.tokens_per_gpu * 2, 0.5, 1);
  return source.draw(scenario.model->moe_layers(), gpus, 0, period);
}

// Every GPU sends `rows` to every expert.
routing::ReplicaRouting equal_counts(const scenario::Scenario& scenario, std::int32_t rows) {
  routing::ReplicaRouting routing;
  for (int layer = 0; layer < scenario.model->moe_layers(); ++layer) {
    routing::LayerRouting one;
    one.capacity = rows;
    one.exchanged_capacity = rows;
    one.kept_rows.assign(
        static_cast<std::size_t>(scenario.gpus) * static_cast<std::size_t>(scenario.experts), rows);
    routing.layers.push_back(one);
  }
  return routing;
}

network::Topology links_of(const scenario::Scenario& scenario) {
  return network::topology_of(*scenario.cluster, cluster::contiguous_placement(scenario.gpus));
}

}  // namespace

TEST_CASE("without padding, equal counts cost what equal blocks cost") {
  const scenario::Scenario scenario = ragged_scenario(8, 4, 4);
  StepModel model(scenario);
  // 2,048 tokens x 2 over 4 experts; 4 GPUs send 1,024 rows to each expert.
  const routing::ReplicaRouting routing = equal_counts(scenario, 1024);
  const engine::Durations ragged = model.unpadded_durations(routing, StepModel::no_errors);
  const engine::Durations padded = model.durations(&routing, StepModel::no_errors);
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    const auto at = static_cast<std::size_t>(op);
    CHECK(ragged.per_rank[at].empty());
    if (model.direction(op) != StepModel::Direction::none) continue;
    CHECK(ragged.uniform[at] == padded.uniform[at]);
  }
}

TEST_CASE("between nodes equal counts of any size cost what equal blocks cost") {
  const scenario::Scenario unpadded = [] {
    scenario::Scenario scenario = ragged_scenario(16, 16, 16);
    scenario.router.padding = routing::Padding::none;
    return scenario;
  }();
  scenario::Scenario padded = unpadded;
  padded.router.padding = routing::Padding::capacity;
  const auto end_us = [](const scenario::Scenario& scenario, std::int32_t rows) {
    StepModel model(scenario);
    const routing::ReplicaRouting routing = equal_counts(scenario, rows);
    const engine::Execution execution = StepRunner(model).run(&routing, 0, StepModel::no_errors);
    return execution.end_of(0).us();
  };
  // Counts are exchanged and read by the host: as long for any number of rows.
  const double counts_us = end_us(unpadded, 256) - end_us(padded, 256);
  CHECK(counts_us > 0);
  for (const std::int32_t rows : {16, 64, 1024, 4096}) {
    CAPTURE(rows);
    CHECK(end_us(unpadded, rows) - end_us(padded, rows) == Approx(counts_us).epsilon(0.001));
  }
}

TEST_CASE("traffic carries the rows of each GPU to the GPUs of their experts, and home") {
  const scenario::Scenario scenario = ragged_scenario(8, 4, 8);  // two experts per GPU
  const StepModel model(scenario);
  const routing::ReplicaRouting routing = counts_of(scenario, 8);
  const UnpaddedTraffic traffic(model, routing);
  ByteMatrix there(4);
  ByteMatrix back(4);
  int exchanges = 0;
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (!traffic.is_uneven(op)) continue;
    ++exchanges;
    const bool home = model.direction(op) == StepModel::Direction::to_tokens;
    traffic.fill(op, 1, home ? back : there);
    if (!home) continue;
    const auto& rows = routing.layers[static_cast<std::size_t>(model.moe_layer(op))].kept_rows;
    for (int source = 0; source < 4; ++source) {
      for (int owner = 0; owner < 4; ++owner) {
        // Group 1 starts at GPU 4; hidden 4,096 of 2 bytes.
        const std::size_t cell =
            static_cast<std::size_t>(4 + source) * 8 + static_cast<std::size_t>(2 * owner);
        CHECK(there.at(source, owner) == (rows[cell] + rows[cell + 1]) * std::int64_t{8192});
        CHECK(back.at(owner, source) == there.at(source, owner));
      }
    }
  }
  CHECK(exchanges == 4 * 3);  // there and back, forward and backward, in 3 layers
}

TEST_CASE("without duplicates, a token travels once to each GPU, or once to each node and on") {
  // Two nodes of two GPUs. GPU s sends to_gpu[s][d] tokens' rows to GPU d, of to_node[s][n] tokens
  // for node n.
  scenario::Scenario scenario = ragged_scenario(4, 4, 4);
  auto cluster = cluster::Cluster::load("hgx-h100");
  cluster.gpus_per_node = cluster.gpus_per_domain = cluster.nics_per_node = 2;
  scenario.cluster = std::make_shared<cluster::Cluster>(cluster);
  routing::ReplicaRouting routing = equal_counts(scenario, 100);
  for (routing::LayerRouting& layer : routing.layers) {
    layer.copies.to_gpu = {1, 2, 3, 4, 10, 20, 30, 40, 5, 6, 7, 8, 50, 60, 70, 80};
    layer.copies.to_node = {2, 5, 25, 55, 9, 11, 90, 99};
  }
  const auto matrix = [&](scenario::Deduplication dedup, StepModel::Direction direction) {
    scenario.dedup = dedup;
    StepModel model(scenario);
    CHECK_NOTHROW(model.unpadded_durations(routing, StepModel::no_errors));
    const UnpaddedTraffic traffic(model, routing);
    ByteMatrix bytes(4);
    for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
      if (model.direction(op) == direction) traffic.fill(op, 0, bytes);
    }
    std::vector<std::int64_t> rows;
    for (int source = 0; source < 4; ++source) {
      for (int to = 0; to < 4; ++to) rows.push_back(bytes.at(source, to) / 8192);
    }
    return rows;
  };
  using Rows = std::vector<std::int64_t>;
  const auto to_experts = StepModel::Direction::to_experts;
  CHECK(matrix(scenario::Deduplication::gpu, to_experts) ==
        Rows{1, 2, 3, 4, 10, 20, 30, 40, 5, 6, 7, 8, 50, 60, 70, 80});
  // GPU 0's 5 tokens for node 1 go to GPU 2, which has its 3 then and forwards 4 to GPU 3; GPU 1's
  // 55 go to GPU 3, which forwards 30 to GPU 2. Back over: GPU 2's 9 go to GPU 0, 6 on to GPU 1;
  // GPU 3's 90 to GPU 1, 50 on to GPU 0.
  const Rows by_node{1, 2 + 6, 5, 0, 10 + 50, 20, 0, 55, 9, 0, 7, 8 + 4, 0, 90, 70 + 30, 80};
  CHECK(matrix(scenario::Deduplication::node, to_experts) == by_node);
  Rows home;
  for (std::size_t source = 0; source < 4; ++source) {
    for (std::size_t to = 0; to < 4; ++to) home.push_back(by_node[to * 4 + source]);
  }
  CHECK(matrix(scenario::Deduplication::node, StepModel::Direction::to_tokens) == home);
  scenario.dedup = scenario::Deduplication::node;
  StepModel model(scenario);
  routing.layers[0].copies.to_node.pop_back();
  CHECK_THROWS_WITH(model.unpadded_durations(routing, StepModel::no_errors),
                    ContainsSubstring("copies of tokens"));
}

TEST_CASE("Megatron sends a row's probability, 4 bytes, beside it, and its gradient home") {
  scenario::Scenario scenario = ragged_scenario(4, 4, 8);
  scenario.router = routing::parse_router("dropless", 2);
  scenario.router.dialect = routing::Dialect::megatron;
  const StepModel model(scenario);
  const routing::ReplicaRouting routing = counts_of(scenario, 4);
  const UnpaddedTraffic traffic(model, routing);
  ByteMatrix tokens(4), bytes(4);
  int there = 0;
  int home = 0;
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (!traffic.is_uneven(op)) continue;
    if (model.row_bytes(op) != 4) {
      traffic.fill(op, 0, tokens);
      CHECK(model.row_bytes(op) == 8192);
      continue;
    }
    // It follows the all-to-all of its own rows: the dispatch, backward the one that ends it.
    traffic.fill(op, 0, bytes);
    for (int source = 0; source < 4; ++source) {
      for (int to = 0; to < 4; ++to) CHECK(bytes.at(source, to) * 2048 == tokens.at(source, to));
    }
    ++(model.direction(op) == StepModel::Direction::to_experts ? there : home);
  }
  CHECK(there == 3);  // one a layer
  CHECK(home == 3);
  const auto exchanges = [&] {
    const StepModel other(scenario);
    int count = 0;
    for (int op = 0; op < static_cast<int>(other.program().operations.size()); ++op) {
      count += other.direction(op) != StepModel::Direction::none ? 1 : 0;
    }
    return count;
  };
  CHECK(exchanges() == 6 * 3);
  scenario.dedup = scenario::Deduplication::gpu;  // along with the tokens
  CHECK(exchanges() == 4 * 3);
  scenario.dedup = scenario::Deduplication::none;
  scenario.router.dialect = routing::Dialect::paper;
  CHECK(exchanges() == 4 * 3);
}

TEST_CASE("probabilities of padded blocks take what 4 bytes a row take") {
  scenario::Scenario scenario = ragged_scenario(8, 8, 8);
  scenario.mode = scenario::Mode::prefill;
  scenario.router.dialect = routing::Dialect::megatron;
  StepModel model(scenario);
  const routing::ReplicaRouting routing = equal_counts(scenario, 512);
  const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  const Kernel alone = KernelPricer(scenario).exchange(profile::Collective::all_to_all, all,
                                                       8 * 512 * probability_bytes, "");
  int count = 0;
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (model.direction(op) == StepModel::Direction::none || model.row_bytes(op) != 4) continue;
    CHECK(durations.uniform[static_cast<std::size_t>(op)].us() ==
          Approx(alone.count * alone.estimate.time_us).epsilon(1e-6));
    ++count;
  }
  CHECK(count == 3);
}

TEST_CASE("groups that keep the same rows of different tokens are not taken for one") {
  scenario::Scenario scenario = ragged_scenario(8, 4, 4);
  scenario.dedup = scenario::Deduplication::gpu;
  const StepModel model(scenario);
  routing::ReplicaRouting routing = equal_counts(scenario, 10);
  for (routing::LayerRouting& layer : routing.layers) {
    layer.copies.to_gpu.assign(32, 7);
    layer.copies.to_node.assign(8, 7);
  }
  routing.layers[1].copies.to_gpu[20] = 6;
  const UnpaddedTraffic traffic(model, routing);
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (!traffic.is_uneven(op)) continue;
    const bool same = traffic.pattern(op, 0) == traffic.pattern(op, 1);
    CHECK(same == (model.moe_layer(op) != 1));
  }
}

TEST_CASE("interpolated expert prices are those of the curve") {
  // One expert per GPU of 2: rows 513 .. 4,000 exactly as sent by one GPU.
  scenario::Scenario scenario = ragged_scenario(2, 2, 2);
  scenario.mode = scenario::Mode::prefill;
  StepModel model(scenario);
  const KernelPricer pricer(scenario);
  std::vector<double> off;
  for (std::int32_t rows = 513; rows < 4000; rows += 29) {
    routing::ReplicaRouting routing = equal_counts(scenario, 0);
    for (routing::LayerRouting& layer : routing.layers) layer.kept_rows = {rows, 1, 0, 0};
    const engine::Durations durations = model.unpadded_durations(routing, StepModel::no_errors);
    double us = 0;
    for (const Kernel& kernel : pricer.expert_rows(Pass::forward, rows)) {
      us += kernel.count * kernel.estimate.time_us;
    }
    for (std::size_t op = 0; op < model.program().operations.size(); ++op) {
      if (model.program().operations[op].name != "expert_ffn") continue;
      off.push_back(std::abs(durations.per_rank[op][0].us() / us - 1));
    }
  }
  std::sort(off.begin(), off.end());
  CHECK(off[off.size() / 2] < 1e-3);
  CHECK(off.back() < 0.02);  // a step of the trees
  CHECK(off.back() > 0);     // some were interpolated
}

TEST_CASE("one group that stands for all gives the times of all, folded or not") {
  const scenario::Scenario scenario = ragged_scenario(32, 8, 8);
  StepModel model(scenario);
  const network::Topology topology = links_of(scenario);
  network::PortClock clock(topology);
  const auto simulate = [&](const routing::ReplicaRouting& routing, engine::Folding folding) {
    const UnpaddedTraffic traffic(model, routing);
    return engine::run_alone(model.program(),
                             model.unpadded_durations(routing, StepModel::no_errors),
                             {&traffic, &clock}, folding);
  };
  const engine::Execution all = simulate(counts_of(scenario, 32, 8), engine::Folding::off);
  const engine::Execution found = simulate(counts_of(scenario, 32, 8), engine::Folding::on);
  const engine::Execution given = simulate(counts_of(scenario, 8), engine::Folding::on);
  CHECK(all.columns == 32);
  CHECK(found.columns == 8);
  CHECK(given.columns == 8);
  bool same = true;
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    for (int rank = 0; rank < scenario.gpus; ++rank) {
      const Picoseconds finish = all.finish[all.at(op, rank)];
      same = same && found.finish[found.at(op, rank)] == finish &&
             given.finish[given.at(op, rank)] == finish;
    }
  }
  CHECK(same);
}

TEST_CASE("a step through ports is a little faster than through exact flows") {
  // Ports are full all the time in the fast network; exact flows leave gaps where one end is busy.
  const scenario::Scenario scenario = ragged_scenario(16, 16, 16);
  StepModel model(scenario);
  const routing::ReplicaRouting routing = counts_of(scenario, 16);
  const UnpaddedTraffic traffic(model, routing);
  const engine::Durations durations = model.unpadded_durations(routing, StepModel::no_errors);
  const network::Topology topology = links_of(scenario);
  network::PortClock clock(topology);
  const engine::Execution fast =
      engine::run_alone(model.program(), durations, {&traffic, &clock}, engine::Folding::off);
  network::FlowFabric fabric(topology);
  const engine::Execution exact = engine::run(model.program(), durations, fabric, &traffic);
  const double ratio =
      exact.end_of(exact.slowest_rank()).us() / fast.end_of(fast.slowest_rank()).us();
  CHECK(ratio >= 1);
  CHECK(ratio < 1.05);
}

TEST_CASE("scenarios give the same bits on any number of threads") {
  const scenario::Scenario scenario = ragged_scenario(16, 8, 8);
  constexpr int count = 24;
  const support::SkewedCounts source(scenario.experts, scenario.tokens_per_gpu * 2, 0.5, 1);
  const auto steps_on = [&](int threads) {
    std::vector<Picoseconds> steps(count);
    std::vector<std::thread> workers;
    for (int thread = 0; thread < threads; ++thread) {
      workers.emplace_back([&, thread] {
        StepModel model(scenario);
        const network::Topology topology = links_of(scenario);
        network::PortClock clock(topology);
        for (int number = thread; number < count; number += threads) {
          const auto routing =
              source.draw(scenario.model->moe_layers(), 16, static_cast<std::uint32_t>(number));
          const UnpaddedTraffic traffic(model, routing);
          const engine::Execution execution = engine::run_alone(
              model.program(), model.unpadded_durations(routing, StepModel::no_errors),
              {&traffic, &clock});
          steps[static_cast<std::size_t>(number)] = execution.end_of(execution.slowest_rank());
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    return steps;
  };
  const std::vector<Picoseconds> one = steps_on(1);
  CHECK(one == steps_on(2));
  CHECK(one == steps_on(5));
  CHECK(std::adjacent_find(one.begin(), one.end()) == one.end());  // scenarios do differ
}

TEST_CASE("what needs equal blocks is refused without padding") {
  scenario::Scenario scenario = ragged_scenario(8, 4, 4);
  const routing::ReplicaRouting routing = equal_counts(scenario, 10);
  scenario.dispatch = scenario::Dispatch::einsum;
  StepModel einsum(scenario);
  CHECK_THROWS_AS(einsum.unpadded_durations(routing, StepModel::no_errors), UsageError);
  scenario.dispatch = scenario::Dispatch::index;
  StepModel model(scenario);
  routing::ReplicaRouting short_of_one = routing;
  short_of_one.layers[1].kept_rows.pop_back();
  CHECK_THROWS_AS(model.unpadded_durations(short_of_one, StepModel::no_errors), Error);
}

}  // namespace moesim::step
