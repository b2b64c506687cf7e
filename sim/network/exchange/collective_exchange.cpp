#include "sim/network/exchange/collective_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/network/exchange/exchange.hpp"
#include "sim/network/schedules/message_plan.hpp"
#include "sim/network/topology/domains.hpp"

namespace moesim::network {
namespace {

using profile::Collective;

int smallest_domain(const Domains& domains) {
  std::size_t smallest = domains.ranks.front().size();
  for (const auto& members : domains.ranks) smallest = std::min(smallest, members.size());
  return static_cast<int>(smallest);
}

// Ring `number`: all ranks, domain by domain; in each from the member of that number on, so that
// every ring enters and leaves a domain through NICs of its own.
std::vector<int> ring_order(const Domains& domains, int number) {
  std::vector<int> order;
  for (const auto& members : domains.ranks) {
    for (std::size_t step = 0; step < members.size(); ++step) {
      order.push_back(members[(index_of(number) + step) % members.size()]);
    }
  }
  return order;
}

// In every round each rank passes on the chunk that it got in the round before, once its own chunk
// of that round has passed.
void add_ring(MessagePlan& plan, const std::vector<int>& order, std::int64_t bytes, int rounds,
              std::span<const Picoseconds> start) {
  const int ranks = static_cast<int>(order.size());
  std::vector<int> got(order.size(), -1);
  std::vector<int> next = got;
  for (int round = 0; round < rounds; ++round) {
    for (int place = 0; place < ranks; ++place) {
      const int chunk = (place - round % ranks + ranks) % ranks;
      const int after = (place + 1) % ranks;
      const int rank = order[index_of(place)];
      const int message = plan.add(rank, order[index_of(after)], slice_of(bytes, chunk, ranks),
                                   start.empty() ? Picoseconds(0) : start[index_of(rank)]);
      for (const int earlier : {got[index_of(place)], got[index_of(after)]}) {
        if (earlier >= 0) plan.wait(message, earlier);
      }
      next[index_of(after)] = message;
    }
    std::swap(got, next);
  }
}

// Parent of each rank in tree `number`: a chain inside each domain towards its member of that
// number, and a binary tree over these.
std::vector<int> tree_parents(const Domains& domains, int number) {
  std::vector<int> parent(domains.domain_of.size(), -1);
  const auto head = [&](std::size_t domain) {
    const auto& members = domains.ranks[domain];
    return members[index_of(number) % members.size()];
  };
  for (std::size_t domain = 0; domain < domains.ranks.size(); ++domain) {
    const auto& members = domains.ranks[domain];
    for (std::size_t step = 1; step < members.size(); ++step) {
      parent[index_of(members[(index_of(number) + step) % members.size()])] =
          members[(index_of(number) + step - 1) % members.size()];
    }
    if (domain > 0) parent[index_of(head(domain))] = head((domain - 1) / 2);
  }
  return parent;
}

// One slice up to the root, which reduces it, and down again. `last_up` and `last_down` are the
// slices before on the same links.
void add_tree_slice(MessagePlan& plan, const std::vector<int>& parent, std::int64_t bytes,
                    std::span<const Picoseconds> start, std::vector<int>& last_up,
                    std::vector<int>& last_down) {
  const std::size_t ranks = parent.size();
  std::vector<int> reduced(ranks), held(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    reduced[rank] = plan.add_join(start.empty() ? Picoseconds(0) : start[rank]);
    held[rank] = plan.add_join();
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (parent[rank] < 0) {
      plan.wait(held[rank], reduced[rank]);
      continue;
    }
    const int child = static_cast<int>(rank);
    const int up = plan.add(child, parent[rank], bytes);
    plan.wait(up, reduced[rank]);
    plan.wait(reduced[index_of(parent[rank])], up);
    const int down = plan.add(parent[rank], child, bytes);
    plan.wait(down, held[index_of(parent[rank])]);
    plan.wait(held[rank], down);
    if (last_up[rank] >= 0) plan.wait(up, last_up[rank]);
    if (last_down[rank] >= 0) plan.wait(down, last_down[rank]);
    last_up[rank] = up;
    last_down[rank] = down;
  }
}

MessagePlan plan_rings(const Topology& topology, Collective kind, std::int64_t bytes,
                       std::span<const Picoseconds> start) {
  const Domains domains(topology);
  const int rings = domains.ranks.size() == 1 ? 1 : smallest_domain(domains);
  const int rounds = (topology.ranks() - 1) * (kind == Collective::all_reduce ? 2 : 1);
  MessagePlan plan;
  for (int ring = 0; ring < rings; ++ring) {
    add_ring(plan, ring_order(domains, ring), slice_of(bytes, ring, rings), rounds, start);
  }
  return plan;
}

MessagePlan plan_trees(const Topology& topology, std::int64_t bytes,
                       std::span<const Picoseconds> start) {
  constexpr int slices = 8;
  const Domains domains(topology);
  const int trees = domains.ranks.size() == 1 ? 1 : smallest_domain(domains);
  MessagePlan plan;
  for (int tree = 0; tree < trees; ++tree) {
    const std::vector<int> parent = tree_parents(domains, tree);
    std::vector<int> last_up(parent.size(), -1), last_down(parent.size(), -1);
    for (int slice = 0; slice < slices; ++slice) {
      add_tree_slice(plan, parent, slice_of(slice_of(bytes, tree, trees), slice, slices), start,
                     last_up, last_down);
    }
  }
  return plan;
}

// A cluster's latency inside a domain holds the start of the kernel, which a collective of many
// rounds pays once. A hop from GPU to GPU takes what NCCL's own model of itself reckons for NVLink
// and its Simple protocol (src/graph/tuning.cc, hwLat: 3.4 us in rings, 4 us in trees), or the
// latency if that is less. Takes the rest off the links; returns it.
Picoseconds take_start(Topology& topology, CollectiveAlgorithm algorithm) {
  const Plane& plane = topology.inner;
  if (plane.port_up.empty()) return Picoseconds(0);
  const auto latency_of = [&](int link) -> Picoseconds& {
    return topology.links[index_of(link)].latency;
  };
  const Picoseconds whole = latency_of(plane.port_up[0]) + latency_of(plane.port_down[0]);
  const Picoseconds hop(algorithm == CollectiveAlgorithm::ring ? 3'400'000 : 4'000'000);
  if (whole <= hop) return Picoseconds(0);
  const Picoseconds up(hop.count / 2);
  for (const int link : plane.port_up) latency_of(link) = std::min(latency_of(link), up);
  for (const int link : plane.port_down) latency_of(link) = std::min(latency_of(link), hop - up);
  return whole - hop;
}

}  // namespace

ExchangeTimes simulate_collective(const Topology& topology, Collective kind, std::int64_t bytes,
                                  std::span<const Picoseconds> start,
                                  CollectiveAlgorithm algorithm) {
  if (bytes < 0) throw UsageError(fmt::format("{}: {} bytes", name_of(kind), bytes));
  if (!start.empty() && start.size() != index_of(topology.ranks())) {
    throw UsageError(fmt::format("{}: {} start times for {} ranks: expected the same number",
                                 name_of(kind), start.size(), topology.ranks()));
  }
  if (kind == Collective::all_to_all) {
    ByteMatrix matrix(topology.ranks());
    for (int source = 0; source < topology.ranks(); ++source) {
      for (int destination = 0; destination < topology.ranks(); ++destination) {
        matrix.at(source, destination) = slice_of(bytes, destination, topology.ranks());
      }
    }
    return simulate_exchange(topology, matrix, start, schedules::burst);
  }
  if (algorithm == CollectiveAlgorithm::tree && kind != Collective::all_reduce) {
    throw UsageError(fmt::format("{} does not run as a tree: choose a ring", name_of(kind)));
  }
  check(topology);
  Topology hops = topology;
  const Picoseconds begins = take_start(hops, algorithm);
  std::vector<Picoseconds> starts(start.begin(), start.end());
  starts.resize(index_of(topology.ranks()));
  for (Picoseconds& time : starts) time += begins;
  const MessagePlan plan = algorithm == CollectiveAlgorithm::tree
                               ? plan_trees(hops, bytes, starts)
                               : plan_rings(hops, kind, bytes, starts);
  MessagePlan::Times times = plan.run(hops);
  return {times.makespan, std::move(times.rank_finish),
          Method::flows,  times.makespan,
          times.makespan, {}};
}

}  // namespace moesim::network
