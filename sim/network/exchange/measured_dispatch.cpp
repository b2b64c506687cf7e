#include "sim/network/exchange/measured_dispatch.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

namespace moesim::network {
namespace {

using cluster::MeasuredDispatch;
using profile::Dispatcher;
using profile::MoeStage;

// Runs of one setting on other days and machines differ by as much.
constexpr double least_spread = 0.06;

// Measured over predicted.
double factor_of(const MeasuredDispatch& measured, MoeStage stage, const Dispatcher& dispatcher,
                 const DispatchPlace& place) {
  const profile::DispatchLoad load =
      profile::balanced_load(dispatcher.sent, stage, {measured.experts, measured.top_k, 0},
                             place.group, static_cast<double>(measured.tokens));
  const double row = profile::dispatched_row_bytes(
      dispatcher, stage, static_cast<double>(measured.hidden), measured.row_format == "fp8");
  const int sms = measured.sms > 0 ? measured.sms : dispatcher.usual_sms;
  return measured.time_us / profile::dispatch_time(dispatcher, place.device, stage, place.group,
                                                   load, row, place.rates, sms)
                                .time_us;
}

void take(double& value, double& low, double& high, double to) { value = low = high = to; }

void scale(profile::StageCost& cost, const std::vector<double>& factors) {
  double logs = 0;
  for (const double factor : factors) logs += std::log(factor);
  const double mean = std::exp(logs / static_cast<double>(factors.size()));
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  cost.factor = {mean, std::min(*least, mean * (1 - least_spread)),
                 std::max(*most, mean * (1 + least_spread))};
  // The rates were measured along with it.
  profile::Ranged& link = cost.link_efficiency;
  take(link.value, link.low, link.high, link.value);
}

// Nodes that the group's GPUs lie in: those of each domain that it touches, or of a node with
// several domains the share.
int nodes_of(const profile::DispatchGroup& group, const cluster::Cluster& cluster) {
  const auto of = [&](int gpus) {
    return (gpus + cluster.gpus_per_node - 1) / cluster.gpus_per_node;
  };
  if (cluster.gpus_per_domain < cluster.gpus_per_node) return of(group.gpus);
  return group.domains() * of(std::min(group.gpus, group.per_domain));
}

}  // namespace

Dispatcher with_measurements(const Dispatcher& dispatcher, const DispatchPlace& place,
                             const cluster::Cluster& cluster) {
  Dispatcher measured = dispatcher;
  const bool crosses = place.group.crosses();
  const int nodes = nodes_of(place.group, cluster);
  std::set<std::string> origins;
  for (const auto& [stage, name] :
       {std::pair(MoeStage::dispatch, "dispatch"), std::pair(MoeStage::combine, "combine")}) {
    std::vector<double> factors;
    for (const MeasuredDispatch& entry : cluster.dispatches) {
      if (entry.dispatcher != dispatcher.name || entry.stage != name || entry.nodes != nodes ||
          entry.gpus != place.group.gpus) {
        continue;
      }
      factors.push_back(factor_of(entry, stage, dispatcher, place));
      origins.insert(entry.origin);
    }
    if (factors.empty()) continue;
    for (profile::DispatchMachine& machine : measured.machines) {
      const auto at = static_cast<std::size_t>(stage);
      if (!crosses) {
        scale(machine.inside[at], factors);
      } else if (machine.across[at]) {
        scale(*machine.across[at], factors);
      }
    }
  }
  if (origins.empty()) return measured;
  std::string origin;
  for (const std::string& each : origins) origin += (origin.empty() ? "" : "; ") + each;
  for (profile::DispatchMachine& machine : measured.machines) {
    machine.origin = origin + ", over " + machine.origin;
  }
  for (auto& nic : measured.nic) {
    if (!crosses || !nic) continue;
    take(nic->efficiency.value, nic->efficiency.low, nic->efficiency.high, nic->efficiency.value);
    take(nic->message_us.value, nic->message_us.low, nic->message_us.high, nic->message_us.value);
  }
  return measured;
}

}  // namespace moesim::network
