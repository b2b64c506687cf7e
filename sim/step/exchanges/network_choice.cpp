#include "sim/step/exchanges/network_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "sim/base/no_answer.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/network/exchange/port_clock.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "sim/scenario/idle_rules.hpp"

namespace moesim::step {
namespace {

// Whether all groups are divided among domains in the same way.
bool lie_alike(const engine::Partition& groups, const cluster::Cluster& cluster) {
  std::set<std::vector<int>> patterns;
  for (const std::vector<int>& group : groups.groups) {
    std::map<int, int> first;
    std::vector<int> pattern;
    for (const int gpu : group) {
      const int next = static_cast<int>(first.size());
      pattern.push_back(first.try_emplace(cluster.domain_of(gpu), next).first->second);
    }
    patterns.insert(std::move(pattern));
  }
  return patterns.size() == 1;
}

bool cross_domains(const engine::Partition& groups, const cluster::Cluster& cluster) {
  return std::any_of(groups.groups.begin(), groups.groups.end(), [&](const auto& group) {
    return std::any_of(group.begin(), group.end(), [&](int gpu) {
      return cluster.domain_of(gpu) != cluster.domain_of(group.front());
    });
  });
}

// Why fast may be inaccurate; empty where it is certified.
std::string doubt(const scenario::Scenario& scenario, const engine::Partition& groups) {
  const cluster::Cluster& cluster = *scenario.cluster;
  if (!lie_alike(groups, cluster)) return "expert groups lie differently on the nodes";
  if (!scenario.conditions.slow_links.empty() && cross_domains(groups, cluster)) {
    return "a slow link between nodes need not be the busiest";
  }
  if (groups.groups.size() == 1) return "";
  return shared_links(network::topology_of(cluster, cluster::contiguous_placement(scenario.gpus)),
                      groups);
}

}  // namespace

std::string shared_links(const network::Topology& topology, const engine::Partition& groups) {
  constexpr int nobody = -1;
  const std::vector<bool> nonbinding = network::nonbinding_uplinks(topology);
  std::vector<int> user(topology.links.size(), nobody);
  for (std::size_t number = 0; number < groups.groups.size(); ++number) {
    const auto group = static_cast<int>(number);
    for (const int source : groups.groups[number]) {
      for (const int destination : groups.groups[number]) {
        if (source == destination) continue;
        for (const int index : topology.route(source, destination)) {
          const auto link = static_cast<std::size_t>(index);
          if (nonbinding[link] || user[link] == group) continue;
          if (user[link] != nobody) {
            return fmt::format("expert groups share links: {}", topology.links[link].name);
          }
          user[link] = group;
        }
      }
    }
  }
  return "";
}

namespace {

// Whether the fast network has ports for the cluster's shape. Throws as topology_of().
bool ports_suffice(const scenario::Scenario& scenario) {
  try {
    const network::PortClock clock(
        network::topology_of(*scenario.cluster, cluster::contiguous_placement(scenario.gpus)));
    return true;
  } catch (const NoAnswer&) {
    return false;
  }
}

NetworkChoice choose_for_uneven(const scenario::Scenario& scenario, const engine::Partition& groups,
                                std::int64_t messages) {
  std::string why = "blocks of different sizes";
  const std::string more = doubt(scenario, groups);
  if (!more.empty()) why += ", " + more;
  if (scenario.network == scenario::Network::fast)
    return {scenario::Network::fast, false, "not certified: " + why};
  if (messages <= affordable_messages) {
    return {scenario::Network::flows, true,
            "all-to-alls by exact flows over the cluster's links: " + why};
  }
  if (!ports_suffice(scenario)) {
    return {scenario::Network::flows, true,
            fmt::format("all-to-alls by exact flows, {} messages, as GPUs share ports: {}",
                        messages, why)};
  }
  return {scenario::Network::fast, false,
          fmt::format("not certified, but {} messages: {}", messages, why)};
}

}  // namespace

NetworkChoice choose_network(const scenario::Scenario& scenario, const engine::Partition& groups,
                             int exchanges) {
  if (exchanges == 0) return {};
  if (scenario.dispatcher != nullptr) {
    return {scenario::Network::fast, true,
            fmt::format("all-to-alls by the law of {}", scenario.dispatcher->name)};
  }
  if (scenario.network == scenario::Network::flows) {
    return {scenario::Network::flows, true, "all-to-alls by exact flows over the cluster's links"};
  }
  const std::int64_t peers = scenario.expert_parallel - 1;
  const std::int64_t messages = scenario.gpus * peers * exchanges;
  if (!scenario.router.pads_exchange()) return choose_for_uneven(scenario, groups, messages);
  const std::string why = doubt(scenario, groups);
  if (why.empty()) return {scenario::Network::fast, true, "equal blocks, exact alone"};
  if (scenario.network == scenario::Network::fast)
    return {scenario::Network::fast, false, "not certified: " + why};
  if (!scenario.conditions.slowdowns.none()) {
    return {scenario::Network::fast, false, "not certified, but with overlap slowdowns: " + why};
  }
  if (messages > affordable_messages) {
    return {scenario::Network::fast, false,
            fmt::format("not certified, but {} messages: {}", messages, why)};
  }
  return {scenario::Network::flows, true,
          "all-to-alls by exact flows over the cluster's links: " + why};
}

double flows_seconds(const scenario::Scenario& scenario) {
  if (scenario.network != scenario::Network::flows || !scenario.has_moe() ||
      scenario.expert_parallel < 2 || scenario.dispatcher != nullptr) {
    return 0;
  }
  // Dispatch and combine of each layer, and their gradients.
  const double exchanges = scenario::is_training(scenario)
                               ? 4.0 * scenario.moe_layers() * scenario.micro_steps
                               : 2.0 * scenario.moe_layers();
  const int groups = scenario.gpus / scenario.expert_parallel;
  const double size = scenario.expert_parallel / 64.0;
  const bool equal = scenario.router.pads_exchange();
  return (equal ? 0.001 * std::pow(size, 2.3) : 0.003 * std::pow(size, 3.5)) * exchanges * groups;
}

}  // namespace moesim::step
