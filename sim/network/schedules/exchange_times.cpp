#include "sim/network/schedules/exchange_times.hpp"

#include <algorithm>
#include <utility>

#include "sim/base/numbers.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "sim/network/ports/port_bounder.hpp"
#include "sim/network/topology/lean_topology.hpp"

namespace moesim::network {
namespace {

// The latest that one bound of one rank, or of the makespan, can be off.
double worst_slack(const PortBound& bound) {
  double worst = bound.slack();
  for (std::size_t rank = 0; rank < bound.rank_lower.size(); ++rank) {
    if (bound.rank_lower[rank].count == 0) continue;
    const double gap = static_cast<double>((bound.rank_upper[rank] - bound.rank_lower[rank]).count);
    // A rank may finish early: what counts is how far it is off within the exchange.
    worst = std::max(worst, gap / static_cast<double>(bound.lower.count));
  }
  return worst;
}

// All messages at once, on the links that can hold them back.
ExchangeTimes burst_of_flows(const ExchangeRequest& request) {
  const LeanTopology lean(request.topology);
  const int ranks = request.bytes.ranks();
  std::vector<Flow> flows;
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      const std::int64_t bytes = request.bytes.at(source, destination);
      if (bytes == 0 || source == destination) continue;
      flows.push_back({source, destination, bytes,
                       request.start[index_of(source)] + lean.delay(source, destination)});
    }
  }
  FlowOptions options;
  options.tolerance = flow_tolerance(ranks);
  const FlowTimes found = run_flows(lean.links(), flows, options);
  ExchangeTimes times;
  times.rank_finish.resize(index_of(ranks));
  for (std::size_t flow = 0; flow < flows.size(); ++flow) {
    for (const int rank : {flows[flow].source, flows[flow].destination}) {
      times.rank_finish[index_of(rank)] =
          std::max(times.rank_finish[index_of(rank)], found.finish[flow]);
    }
    times.makespan = std::max(times.makespan, found.finish[flow]);
  }
  times.lower = times.upper = times.makespan;
  if (found.counts.dense) times.tolerance = options.tolerance;
  return times;
}

// refine() leaves gaps of a part in some hundreds: it cannot help below that.
constexpr double finest = 1e-3;

}  // namespace

Picoseconds flow_tolerance(int ranks) {
  return Picoseconds(ranks >= 512 ? 20'000 : ranks >= 256 ? 1'000 : 1);
}

bool accepts(const ExchangeSettings& settings, const PortBound& bound) {
  if (settings.method == Method::flows) return false;
  return settings.method == Method::fast || worst_slack(bound) <= settings.tolerance;
}

ExchangeTimes times_of_bound(PortBound bound) {
  const Picoseconds upper = bound.exact ? bound.lower : bound.upper;
  return {bound.lower, std::move(bound.rank_lower), Method::fast, bound.lower, upper, {}};
}

ExchangeTimes times_of_plan(const MessagePlan& plan, const ExchangeRequest& request) {
  MessagePlan::Times times = plan.run(request.topology, request.settings.progress);
  return {times.makespan, std::move(times.rank_finish),
          Method::flows,  times.makespan,
          times.makespan, {}};
}

ExchangeTimes times_of_burst(const ExchangeRequest& request) {
  const ExchangeSettings& settings = request.settings;
  if (settings.method != Method::flows) {
    PortBounder bounder(request.topology);
    PortBound bound = bounder.bound(request.bytes, request.start);
    const bool wide = worst_slack(bound) > std::min(settings.tolerance, finest);
    if (wide && (settings.method == Method::fast || settings.tolerance >= finest)) {
      bounder.refine(request.bytes, request.start, bound);
    }
    if (accepts(settings, bound)) return times_of_bound(std::move(bound));
  }
  return burst_of_flows(request);
}

}  // namespace moesim::network
