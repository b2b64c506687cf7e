#include "sim/step/step_runner.hpp"

#include <algorithm>
#include <cmath>

#include "sim/cluster/placement.hpp"
#include "sim/engine/contended.hpp"
#include "sim/engine/dataflow.hpp"
#include "sim/network/cluster_topology.hpp"
#include "sim/network/flow_fabric.hpp"
#include "sim/step/ragged.hpp"

namespace moesim::step {
namespace {

using Direction = StepModel::Direction;

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
    const std::int64_t block =
        routing_.layers[layer].exchanged_capacity * experts * std::llround(model_.row_bytes());
    for (int source = 0; source < bytes.ranks(); ++source) {
      std::fill_n(bytes.row(source), bytes.ranks(), block);
    }
  }
  int pattern(int /*operation*/, int /*group*/) const override { return 0; }

 private:
  const StepModel& model_;
  const routing::ReplicaRouting& routing_;
};

void scale(network::Topology& topology, const std::vector<int>& links, double factor) {
  for (const int link : links) {
    Bandwidth& bandwidth = topology.links[static_cast<std::size_t>(link)].bandwidth;
    bandwidth = Bandwidth(bandwidth.bytes_per_second * factor);
  }
}

}  // namespace

StepRunner::StepRunner(StepModel& model) : model_(model) {
  const auto operations = static_cast<int>(model.program().operations.size());
  for (int op = operations - 1; op >= 0; --op) {
    if (model.direction(op) != Direction::none) first_exchange_ = op;
  }
  const bool flows = model.scenario().network == Network::flows;
  used_ = flows && first_exchange_ >= 0 ? Network::flows : Network::fast;
}

engine::Schedule StepRunner::run(const routing::ReplicaRouting* routing, int replica, int errors) {
  const Scenario& scenario = model_.scenario();
  engine::Durations durations = model_.durations(routing, errors);
  disturb(scenario.conditions, model_.program(), scenario.seed, replica, durations);
  if (used_ == Network::flows) return run_flows(*routing, durations, errors);
  if (!scenario.conditions.overlap.none()) {
    return engine::run_contended(model_.program(), durations, scenario.conditions.overlap);
  }
  return engine::run_alone(model_.program(), durations);
}

// Where the curve puts a dispatch in a domain at T for W bytes out of each port, the port passes
// W / T: latency and all.
void StepRunner::prepare_links(std::int64_t capacity) {
  const Scenario& scenario = model_.scenario();
  links_ = network::topology_of(*scenario.cluster, cluster::contiguous_placement(scenario.gpus));
  links_capacity_ = capacity;
  std::vector<int> outer = links_->outer.port_up;
  outer.insert(outer.end(), links_->outer.port_down.begin(), links_->outer.port_down.end());
  std::sort(outer.begin(), outer.end());
  outer.erase(std::unique(outer.begin(), outer.end()), outer.end());
  scale(*links_, outer, 1 / model_.exchange_multiplier());
  const int inside = std::min(scenario.expert_parallel, scenario.cluster->gpus_per_domain);
  if (inside > 1 && capacity > 0) {
    const double blocks = static_cast<double>(scenario.experts * capacity) /
                          scenario.expert_parallel * model_.row_bytes();
    const double us =
        scenario.profile->collective(profile::Collective::all_to_all, inside, blocks * inside)
            .time_us *
        model_.exchange_multiplier();
    const auto set = [&](const std::vector<int>& ports) {
      for (const int port : ports) {
        network::Link& link = links_->links[static_cast<std::size_t>(port)];
        link.bandwidth = Bandwidth(blocks * (inside - 1) / (us * 1e-6));
        link.latency = Picoseconds(0);
      }
    };
    set(links_->inner.port_up);
    set(links_->inner.port_down);
  }
  for (const GpuFactor& slow : scenario.conditions.slow_links) {
    const auto gpu = static_cast<std::size_t>(slow.gpu);
    for (const network::Plane* plane : {&links_->inner, &links_->outer}) {
      if (plane->port_up.empty()) continue;
      scale(*links_, {plane->port_up[gpu], plane->port_down[gpu]}, 1 / slow.factor);
    }
  }
}

// How many times longer this replica's errors make the dispatch.
double StepRunner::exchange_error(const routing::ReplicaRouting& routing,
                                  const engine::Durations& durations, int errors) {
  if (errors == StepModel::no_errors) return 1;
  const auto op = static_cast<std::size_t>(first_exchange_);
  const Picoseconds without = model_.durations(&routing, StepModel::no_errors).uniform[op];
  if (without == Picoseconds(0)) return 1;
  return durations.uniform[op].us() / without.us();
}

engine::Schedule StepRunner::run_flows(const routing::ReplicaRouting& routing,
                                       const engine::Durations& durations, int errors) {
  const auto layer = static_cast<std::size_t>(model_.moe_layer(first_exchange_));
  const std::int64_t capacity = routing.layers[layer].exchanged_capacity;
  if (!links_ || links_capacity_ != capacity) prepare_links(capacity);
  network::Topology topology = *links_;
  const double error = exchange_error(routing, durations, errors);
  for (network::Link& link : topology.links) {
    link.bandwidth = Bandwidth(link.bandwidth.bytes_per_second / error);
  }
  network::FlowFabric fabric(topology);
  const PaddedTraffic traffic(model_, routing);
  return engine::run(model_.program(), durations, fabric, &traffic);
}

}  // namespace moesim::step
