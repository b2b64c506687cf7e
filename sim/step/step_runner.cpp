#include "sim/step/step_runner.hpp"

#include <algorithm>
#include <cmath>

#include "sim/engine/contended.hpp"
#include "sim/engine/dataflow.hpp"
#include "sim/network/flows/flow_fabric.hpp"
#include "sim/step/ragged.hpp"

namespace moesim::step {
namespace {

using Direction = StepModel::Direction;

bool is_exchanged(const StepModel& model, const routing::ReplicaRouting& routing, int operation) {
  return routing.layers[static_cast<std::size_t>(model.moe_layer(operation))].exchanged;
}

// Equal blocks between all members, C rows for each expert.
class PaddedTraffic final : public engine::Traffic {
 public:
  PaddedTraffic(const StepModel& model, const routing::ReplicaRouting& routing)
      : model_(model), routing_(routing) {}

  bool is_uneven(int operation) const override {
    return model_.direction(operation) != Direction::none;
  }
  void fill(int operation, int /*group*/, ByteMatrix& bytes) const override {
    const auto layer = static_cast<std::size_t>(model_.moe_layer(operation));
    const std::int64_t experts = model_.scenario().experts / model_.scenario().expert_parallel;
    const std::int64_t block = routing_.layers[layer].exchanged_capacity * experts *
                               std::llround(model_.row_bytes(operation));
    for (int source = 0; source < bytes.ranks(); ++source) {
      std::fill_n(bytes.row(source), bytes.ranks(), block);
    }
  }
  int pattern(int /*operation*/, int /*group*/) const override { return 0; }

 private:
  const StepModel& model_;
  const routing::ReplicaRouting& routing_;
};

// Uneven traffic in the bytes that take the curve's time on the links.
class AdjustedTraffic final : public engine::Traffic {
 public:
  AdjustedTraffic(const engine::Traffic& traffic, ExchangeLinks& links, int members)
      : traffic_(traffic), links_(links), members_(members) {}

  bool is_uneven(int operation) const override { return traffic_.is_uneven(operation); }
  void fill(int operation, int group, ByteMatrix& bytes) const override {
    traffic_.fill(operation, group, bytes);
    links_.adjust(group * members_, bytes);
  }
  int pattern(int operation, int group) const override {
    return traffic_.pattern(operation, group);
  }

 private:
  const engine::Traffic& traffic_;
  ExchangeLinks& links_;
  int members_ = 0;
};

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

engine::Schedule StepRunner::run(const routing::ReplicaRouting* routing, int replica, int errors) {
  const scenario::Scenario& scenario = model_.scenario();
  engine::Durations durations = model_.durations(routing, errors);
  disturb(scenario.conditions, model_.program(), scenario.seed, replica, durations,
          model_.latency_shares(routing));
  if (exchanges_ && !scenario.router.pads_exchange()) {
    return run_uneven(*routing, durations, errors);
  }
  if (used() == scenario::Network::flows) return run_equal_flows(*routing, durations, errors);
  if (!scenario.conditions.overlap.none()) {
    return engine::run_contended(model_.program(), durations, scenario.conditions.overlap);
  }
  return engine::run_alone(model_.program(), durations);
}

ExchangeLinks& StepRunner::links_at(double block) {
  if (!links_ || links_->block() != block) links_.emplace(model_, block);
  return *links_;
}

// A block of the links' reference: what each member sends to each other if all routes are kept and
// lie evenly.
engine::Schedule StepRunner::run_uneven(const routing::ReplicaRouting& routing,
                                        const engine::Durations& durations, int errors) {
  const scenario::Scenario& scenario = model_.scenario();
  const std::int64_t rows = scenario.tokens_per_gpu * scenario.router.top_k;
  ExchangeLinks& links =
      links_at(static_cast<double>(rows) / scenario.expert_parallel * model_.row_bytes());
  const network::Topology topology = links.topology(model_.exchange_error(errors));
  const RaggedTraffic rows_of(model_, routing);
  const AdjustedTraffic traffic(rows_of, links, scenario.expert_parallel);
  if (used() == scenario::Network::flows) {
    network::FlowFabric fabric(topology);
    return engine::run(model_.program(), durations, fabric, &traffic);
  }
  network::PortClock clock(topology);
  return engine::run_alone(model_.program(), durations, {&traffic, &clock});
}

// The first dispatch that takes place, -1: none.
int StepRunner::first_exchange(const routing::ReplicaRouting& routing) const {
  for (int op = 0; op < static_cast<int>(model_.program().operations.size()); ++op) {
    if (model_.direction(op) != Direction::none && is_exchanged(model_, routing, op)) return op;
  }
  return -1;
}

// How many times longer this replica's errors make an exchange.
double StepRunner::error_of_equal(const routing::ReplicaRouting& routing,
                                  const engine::Durations& durations, int exchange, int errors) {
  if (errors == StepModel::no_errors) return 1;
  const auto op = static_cast<std::size_t>(exchange);
  const Picoseconds without = model_.durations(&routing, StepModel::no_errors).uniform[op];
  if (without == Picoseconds(0)) return 1;
  return durations.uniform[op].us() / without.us();
}

engine::Schedule StepRunner::run_equal_flows(const routing::ReplicaRouting& routing,
                                             const engine::Durations& durations, int errors) {
  const scenario::Scenario& scenario = model_.scenario();
  const int exchange = first_exchange(routing);
  double block = 0;
  double slower = 1;
  if (exchange >= 0) {
    const auto layer = static_cast<std::size_t>(model_.moe_layer(exchange));
    block = static_cast<double>(scenario.experts * routing.layers[layer].exchanged_capacity) /
            scenario.expert_parallel * model_.row_bytes();
    slower = error_of_equal(routing, durations, exchange, errors);
  }
  const network::Topology topology = links_at(block).topology(slower);
  network::FlowFabric fabric(topology);
  const PaddedTraffic traffic(model_, routing);
  return engine::run(model_.program(), durations, fabric, &traffic);
}

}  // namespace moesim::step
