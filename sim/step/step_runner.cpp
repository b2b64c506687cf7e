#include "sim/step/step_runner.hpp"

#include <algorithm>
#include <cmath>

#include "sim/cluster/placement.hpp"
#include "sim/engine/contended.hpp"
#include "sim/engine/dataflow.hpp"
#include "sim/network/cluster_topology.hpp"
#include "sim/network/flow_fabric.hpp"
#include "sim/network/port_bound.hpp"
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

// Everything on these links takes `factor` times as long.
void slow_down(network::Topology& topology, const std::vector<int>& links, double factor) {
  scale(topology, links, 1 / factor);
  for (const int number : links) {
    Picoseconds& latency = topology.links[static_cast<std::size_t>(number)].latency;
    latency = Picoseconds(std::llround(static_cast<double>(latency.count) * factor));
  }
}

std::vector<int> links_of(const network::Plane& plane) {
  std::vector<int> links;
  const auto add = [&](const std::vector<int>& more) {
    links.insert(links.end(), more.begin(), more.end());
  };
  add(plane.port_up);
  add(plane.port_down);
  for (const network::Tier& tier : plane.tiers) {
    add(tier.up);
    add(tier.down);
  }
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  return links;
}

// What the busiest link needs when the first `gpus` GPUs of a domain send one byte to each other,
// by the links of the document, us.
double busiest_us_per_byte(const cluster::Cluster& cluster, int gpus) {
  network::Topology topology = network::topology_of(cluster, cluster::contiguous_placement(gpus));
  for (network::Link& link : topology.links) link.latency = Picoseconds(0);
  constexpr std::int64_t block = std::int64_t{1} << 36;  // so that picoseconds do not round it
  ByteMatrix bytes(gpus);
  for (int source = 0; source < gpus; ++source) std::fill_n(bytes.row(source), gpus, block);
  return network::PortBounder(topology).bound(bytes).lower.us() / static_cast<double>(block);
}

}  // namespace

StepRunner::StepRunner(StepModel& model) : model_(model) {
  const auto operations = static_cast<int>(model.program().operations.size());
  int exchanges = 0;
  for (int op = operations - 1; op >= 0; --op) {
    if (model.direction(op) == Direction::none) continue;
    first_exchange_ = op;
    ++exchanges;
  }
  if (exchanges == 0) return;
  const int groups = model.program().operations[static_cast<std::size_t>(first_exchange_)].groups;
  choice_ = choose_network(model.scenario(),
                           model.program().partitions[static_cast<std::size_t>(groups)], exchanges);
}

engine::Schedule StepRunner::run(const routing::ReplicaRouting* routing, int replica, int errors) {
  const Scenario& scenario = model_.scenario();
  engine::Durations durations = model_.durations(routing, errors);
  disturb(scenario.conditions, model_.program(), scenario.seed, replica, durations,
          model_.latency_shares(routing));
  if (used() == Network::flows) return run_flows(*routing, durations, errors);
  if (!scenario.conditions.overlap.none()) {
    return engine::run_contended(model_.program(), durations, scenario.conditions.overlap);
  }
  return engine::run_alone(model_.program(), durations);
}

// The links inside a domain are scaled so that the busiest one takes as long as the curve says, the
// time of the smallest size being latency, as in ExchangeModel.
void StepRunner::calibrate_inside(std::int64_t capacity) {
  const Scenario& scenario = model_.scenario();
  const int inside = std::min(scenario.expert_parallel, scenario.cluster->gpus_per_domain);
  if (inside < 2 || capacity == 0) return;
  const double blocks = static_cast<double>(scenario.experts * capacity) /
                        scenario.expert_parallel * model_.row_bytes();
  const auto curve_us = [&](double bytes) {
    return scenario.profile->collective(profile::Collective::all_to_all, inside, bytes).time_us *
           model_.exchange_multiplier();
  };
  const double time_us = curve_us(blocks * inside);
  const double latency_us = std::min(curve_us(1), 0.99 * time_us);
  const double link_us = busiest_us_per_byte(*scenario.cluster, inside) * blocks;
  const network::Plane& plane = links_->inner;
  const std::vector<int> all = links_of(plane);
  scale(*links_, all, link_us / (time_us - latency_us));
  const auto set = [&](const std::vector<int>& links, Picoseconds latency) {
    for (const int link : links) links_->links[static_cast<std::size_t>(link)].latency = latency;
  };
  const Picoseconds latency = Picoseconds::from_us(latency_us);
  const Picoseconds up(latency.count / 2);
  set(all, Picoseconds(0));
  set(plane.port_up, up);
  set(plane.port_down, latency - up);
}

void StepRunner::prepare_links(std::int64_t capacity) {
  const Scenario& scenario = model_.scenario();
  links_ = network::topology_of(*scenario.cluster, cluster::contiguous_placement(scenario.gpus));
  links_capacity_ = capacity;
  slow_down(*links_, links_of(links_->outer), model_.exchange_multiplier());
  calibrate_inside(capacity);
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
  slow_down(topology, links_of(topology.inner), error);
  slow_down(topology, links_of(topology.outer), error);
  network::FlowFabric fabric(topology);
  const PaddedTraffic traffic(model_, routing);
  return engine::run(model_.program(), durations, fabric, &traffic);
}

}  // namespace moesim::step
