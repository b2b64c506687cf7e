#include "sim/step/step_runner.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/engine/contended.hpp"
#include "sim/engine/dataflow.hpp"
#include "sim/network/exchange/port_clock.hpp"
#include "sim/network/flows/flow_fabric.hpp"
#include "sim/step/exchanges/exchange_traffic.hpp"

namespace moesim::step {
namespace {

bool is_exchanged(const StepModel& model, const routing::ReplicaRouting& routing, int operation) {
  return routing.layers[static_cast<std::size_t>(model.moe_layer(operation))].exchanged;
}

// The group whose blocks are the largest: the links are set for these, as the others wait for it.
int largest_group(const routing::LayerRouting& layer) {
  const std::vector<std::int64_t>& blocks = layer.group_blocks;
  return static_cast<int>(std::max_element(blocks.begin(), blocks.end()) - blocks.begin());
}

// Whether blocks differ, in groups or from layer to layer: the links are set for those of one.
bool has_unequal_blocks(const routing::ReplicaRouting& routing) {
  const std::vector<routing::LayerRouting>& layers = routing.layers;
  return std::any_of(layers.begin(), layers.end(), [&](const routing::LayerRouting& layer) {
    return !layer.group_blocks.empty() ||
           layer.exchanged_capacity != layers.front().exchanged_capacity;
  });
}

}  // namespace

StepRunner::StepRunner(StepModel& model) : model_(model) {
  int groups = -1;
  int exchanges = 0;
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (model.direction(op) == Direction::none) continue;
    groups = model.program().operations[static_cast<std::size_t>(op)].groups;
    ++exchanges;
  }
  exchanges_ = exchanges > 0;
  if (!exchanges_) return;
  choice_ = choose_network(model.scenario(),
                           model.program().partitions[static_cast<std::size_t>(groups)], exchanges);
}

engine::Execution StepRunner::run(const routing::ReplicaRouting* routing, int replica, int errors) {
  const scenario::Scenario& scenario = model_.scenario();
  engine::Durations durations = model_.durations(routing, errors);
  disturb(scenario.conditions, model_.program(), scenario.seed, replica, durations,
          model_.latency_shares(routing));
  std::vector<engine::LostTime> lost = model_.slow_gradients(durations, errors);
  engine::Execution execution = run(routing, durations, errors);
  execution.lost = std::move(lost);
  return execution;
}

engine::Execution StepRunner::run(const routing::ReplicaRouting* routing,
                                  const engine::Durations& durations, int errors) {
  const scenario::Scenario& scenario = model_.scenario();
  if (exchanges_ && !scenario.router.pads_exchange() && scenario.dispatcher == nullptr) {
    return run_uneven(*routing, durations, errors);
  }
  if (used() == scenario::Network::flows) return run_equal_flows(*routing, durations, errors);
  if (!scenario.conditions.slowdowns.none()) {
    return engine::run_contended(model_.program(), durations, scenario.conditions.slowdowns);
  }
  return engine::run_alone(model_.program(), durations);
}

ExchangeLinks& StepRunner::links_at(double block) {
  if (!links_ || links_->block() != block) links_.emplace(model_, block);
  return *links_;
}

// The reference block of the links: the bytes that each member sends to each other member if all
// routes are kept and balanced.
engine::Execution StepRunner::run_uneven(const routing::ReplicaRouting& routing,
                                         const engine::Durations& durations, int errors) {
  const scenario::Scenario& scenario = model_.scenario();
  const std::int64_t rows = scenario.tokens_per_gpu * scenario.router.top_k;
  ExchangeLinks& links =
      links_at(static_cast<double>(rows) / scenario.expert_parallel * model_.row_bytes());
  const network::Topology topology = links.topology(model_.exchange_error(errors));
  const UnpaddedTraffic rows_of(model_, routing);
  const AdjustedTraffic traffic(rows_of, links, scenario.expert_parallel);
  if (used() == scenario::Network::flows) {
    network::FlowFabric fabric(topology);
    return engine::run(model_.program(), durations, fabric, &traffic);
  }
  network::PortClock clock(topology);
  return engine::run_alone(model_.program(), durations, {&traffic, &clock});
}

// The first dispatch that is not skipped, -1: none.
int StepRunner::first_exchange(const routing::ReplicaRouting& routing) const {
  for (int op = 0; op < static_cast<int>(model_.program().operations.size()); ++op) {
    if (model_.direction(op) != Direction::none && is_exchanged(model_, routing, op)) return op;
  }
  return -1;
}

engine::Execution StepRunner::run_equal_flows(const routing::ReplicaRouting& routing,
                                              const engine::Durations& durations, int errors) {
  const scenario::Scenario& scenario = model_.scenario();
  const int exchange = first_exchange(routing);
  double block = 0;
  double slower = 1;
  if (exchange >= 0) {
    const routing::LayerRouting& layer =
        routing.layers[static_cast<std::size_t>(model_.moe_layer(exchange))];
    block = static_cast<double>(scenario.experts * layer.exchanged_capacity) /
            scenario.expert_parallel * model_.row_bytes();
    const int gpu = largest_group(layer) * scenario.expert_parallel;
    slower = model_.exchange_error(exchange, gpu, routing, errors);
  }
  ExchangeLinks& links = links_at(block);
  const network::Topology topology = links.topology(slower);
  network::FlowFabric fabric(topology);
  const PaddedTraffic equal(model_, routing);
  const AdjustedTraffic by_group(equal, links, scenario.expert_parallel);
  const bool adjust = has_unequal_blocks(routing);
  return engine::run(model_.program(), durations, fabric,
                     adjust ? static_cast<const engine::Traffic*>(&by_group) : &equal);
}

}  // namespace moesim::step
