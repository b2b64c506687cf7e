#include "sim/network/flows/flow_solver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "sim/base/error.hpp"

namespace moesim::network {
namespace {

constexpr double picoseconds_per_second = 1e12;

const Topology& checked(const Topology& topology) {
  check(topology);
  return topology;
}

}  // namespace

std::vector<double> link_capacities(const Topology& topology) {
  std::vector<double> capacities;
  capacities.reserve(topology.links.size());
  for (const Link& link : topology.links) {
    capacities.push_back(link.bandwidth.bytes_per_second / picoseconds_per_second);
  }
  return capacities;
}

std::size_t longest_route(const Topology& topology) {
  return 2 * (1 + std::max(topology.inner.tiers.size(), topology.outer.tiers.size()));
}

void check(const Topology& topology, const Flow& flow) {
  const auto outside = [&](int rank) { return rank < 0 || rank >= topology.ranks(); };
  if (outside(flow.source) || outside(flow.destination)) {
    throw UsageError(fmt::format("flow from rank {} to rank {}: the topology has ranks 0 to {}",
                                 flow.source, flow.destination, topology.ranks() - 1));
  }
  if (flow.bytes < 0) {
    throw UsageError(fmt::format("flow from rank {} to rank {}: {} bytes: must be 0 or more",
                                 flow.source, flow.destination, flow.bytes));
  }
}

FlowSolver::FlowSolver(const Topology& topology)
    : topology_(checked(topology)),
      transfers_(link_capacities(topology), longest_route(topology)) {}

std::uint32_t FlowSolver::slot_for(int flow) {
  if (free_.empty()) {
    flow_of_.push_back(flow);
    return static_cast<std::uint32_t>(flow_of_.size() - 1);
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  flow_of_[slot] = flow;
  return slot;
}

int FlowSolver::start(const Flow& flow) {
  check(topology_, flow);
  if (flow.start.count < taken_) {
    throw UsageError(fmt::format("flow {}: starts at {} ps, before the simulation's time of {} ps",
                                 started_, flow.start.count, taken_));
  }
  if (started_ == std::numeric_limits<int>::max()) {
    throw Error(fmt::format("network: more than {} flows in one simulation", started_));
  }
  const int number = started_++;
  if (flow.bytes == 0 || flow.source == flow.destination) {
    at_once_.emplace(flow.start.count, number);
    return number;
  }
  const Route route = topology_.route(flow.source, flow.destination);
  hops_of(route, route_);
  const std::int64_t latency = topology_.latency(route).count;
  if (flow.start.count > std::numeric_limits<std::int64_t>::max() - latency) {
    throw Error(fmt::format("flow {}: starts later than simulated time reaches", number));
  }
  transfers_.enter(slot_for(number), static_cast<double>(flow.bytes), flow.start.count + latency,
                   route_);
  return number;
}

std::optional<FlowEnd> FlowSolver::next() {
  std::optional<FlowEnd> end;
  const auto offer = [&](std::int64_t time, int flow) {
    if (end && (end->time.count < time || (end->time.count == time && end->flow < flow))) return;
    end = FlowEnd{Picoseconds(time), flow};
  };
  if (!at_once_.empty()) offer(at_once_.top().first, at_once_.top().second);
  if (!ended_.empty()) {
    offer(ended_time_, ended_.back());
  } else if (const Transfers::Ends* ends = transfers_.next()) {
    int least = std::numeric_limits<int>::max();
    for (const std::uint32_t slot : ends->flows) least = std::min(least, flow_of_[slot]);
    offer(ends->time, least);
  }
  return end;
}

void FlowSolver::take() {
  const std::optional<FlowEnd> end = next();
  if (!end) return;
  taken_ = end->time.count;
  if (!at_once_.empty() && at_once_.top().second == end->flow) {
    at_once_.pop();
    return;
  }
  if (ended_.empty()) {
    const Transfers::Ends* ends = transfers_.next();
    ended_time_ = ends->time;
    for (const std::uint32_t slot : ends->flows) {
      ended_.push_back(flow_of_[slot]);
      free_.push_back(slot);
    }
    std::sort(ended_.begin(), ended_.end(), std::greater<>());
    transfers_.take();
  }
  ended_.pop_back();
}

}  // namespace moesim::network
