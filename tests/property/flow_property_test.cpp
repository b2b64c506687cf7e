// What holds for flows under max-min shares whatever the topology, bytes and start times.
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/network/flows/flow_solver.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/naive_max_min.hpp"
#include "tests/support/run_exchange.hpp"
#include "tests/support/topologies.hpp"

using namespace moesim;
using namespace moesim::network;
using namespace moesim::support;

namespace {

struct Case {
  Topology topology;
  std::vector<Flow> flows;
};

// Ports on a crossbar, domains with a second port, leaves with and without oversubscription, ports
// shared by two ranks; bandwidths of few values (ties) or of any.
Topology any_topology(int ranks) {
  const int group = *rc::gen::inRange(1, 5);
  const int shape = *rc::gen::inRange(0, 4);
  Topology topology = switch_of(ranks);
  if (shape == 1) topology = node8(ranks);
  if (shape == 2) topology = tree2(ranks, group, *rc::gen::element(30e9, 70e9, 400e9));
  if (shape == 3) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      topology.outer.port_up[place] = 2 * (rank / 2);
      topology.outer.port_down[place] = 2 * (rank / 2) + 1;
    }
  }
  for (std::size_t rank = 0; rank < topology.domain_of.size(); ++rank) {
    if (shape == 1) topology.domain_of[rank] = static_cast<int>(rank) / group;
  }
  const int speeds = *rc::gen::inRange(0, 3);
  for (Link& link : topology.links) {
    if (speeds == 0) continue;
    const double factor =
        speeds == 1 ? *rc::gen::inRange(1, 4) : 0.001 * *rc::gen::inRange(1, 9999);
    link.bandwidth = Bandwidth(link.bandwidth.bytes_per_second * factor);
  }
  return topology;
}

Case any_case(int most_ranks = 9, int most_flows = 30) {
  const int ranks = *rc::gen::inRange(2, most_ranks);
  Case one{any_topology(ranks), {}};
  const bool alike = *rc::gen::arbitrary<bool>();
  const bool together = *rc::gen::arbitrary<bool>();
  const int count = *rc::gen::inRange(0, most_flows);
  for (int index = 0; index < count; ++index) {
    Flow flow;
    flow.source = *rc::gen::inRange(0, ranks);
    flow.destination = *rc::gen::inRange(0, ranks);
    flow.bytes = alike ? 1000 * *rc::gen::inRange(0, 4) : *rc::gen::inRange(0, 1000000);
    const std::int64_t time =
        alike ? 100000 * *rc::gen::inRange(0, 4) : *rc::gen::inRange(0, 9999999);
    flow.start = Picoseconds(together ? 0 : time);
    one.flows.push_back(flow);
  }
  return one;
}

bool sends(const Flow& flow) { return flow.bytes > 0 && flow.source != flow.destination; }

void require_near(Picoseconds time, long double expected, const std::string& what) {
  INFO(what << ": " << time.count << " ps, not " << static_cast<double>(expected));
  // Rounding of the result, and of sums of rates over times up to 1e9 ps.
  REQUIRE(std::abs(static_cast<long double>(time.count) - expected) <= 2);
}

}  // namespace

TEST_CASE("the solver agrees with progressive filling at every event", "[flows]") {
  REQUIRE(rc::check([] {
    for (int repeat = 0; repeat < 30; ++repeat) {
      const Case one = any_case();
      const std::vector<long double> expected = naive_ends(one.topology, one.flows);
      const FlowTimes times = run_flows(one.topology, one.flows, {.fold = false});
      for (std::size_t flow = 0; flow < expected.size(); ++flow) {
        require_near(times.finish[flow], expected[flow], "flow " + std::to_string(flow));
      }
    }
  }));
}

TEST_CASE("folding does not change when flows end", "[flows]") {
  REQUIRE(rc::check([] {
    const int ranks = *rc::gen::inRange(2, 17);
    Topology topology = any_topology(ranks);
    const int period = *rc::gen::inRange(1, ranks + 1);
    const bool late = *rc::gen::arbitrary<bool>();
    // Few sizes, by the distance between the ranks and where in a group they are.
    std::vector<std::int64_t> sizes;
    for (int size = 0; size < 3; ++size) sizes.push_back(*rc::gen::inRange(0, 100000));
    const ByteMatrix bytes = matrix_of(ranks, [&](int source, int destination) {
      return sizes[static_cast<std::size_t>((source % period + 2 * (destination % period)) % 3)];
    });
    std::vector<Picoseconds> start;
    for (int rank = 0; rank < ranks; ++rank) start.emplace_back(late ? rank % period * 777777 : 0);
    const FlowTimes folded = run_exchange(topology, bytes, start);
    const FlowTimes plain = run_exchange(topology, bytes, start, {.fold = false});
    RC_CLASSIFY(folded.counts.classes < plain.counts.classes, "folded");
    for (std::size_t pair = 0; pair < plain.finish.size(); ++pair) {
      require_near(folded.finish[pair], static_cast<long double>(plain.finish[pair].count), "pair");
    }
  }));
}

// Starts flows one by one and looks at the next end between them, as a user of the solver in a
// larger simulation does.
TEST_CASE("flows started while others run end as if all had been known", "[flows]") {
  REQUIRE(rc::check([] {
    Case one = any_case();
    const FlowTimes expected = run_flows(one.topology, one.flows, {.fold = false});
    std::stable_sort(one.flows.begin(), one.flows.end(),
                     [](const Flow& a, const Flow& b) { return a.start < b.start; });
    const FlowTimes sorted = run_flows(one.topology, one.flows, {.fold = false});
    FlowSolver solver(one.topology);
    std::size_t ends = 0;
    const auto take = [&] {
      const FlowEnd end = *solver.next();
      require_near(
          end.time,
          static_cast<long double>(sorted.finish[static_cast<std::size_t>(end.flow)].count), "end");
      solver.take();
      ++ends;
    };
    for (const Flow& flow : one.flows) {
      for (auto end = solver.next(); end && end->time < flow.start; end = solver.next()) take();
      solver.start(flow);
    }
    while (solver.next()) take();
    REQUIRE(ends == one.flows.size());
    REQUIRE(std::abs(sorted.makespan.count - expected.makespan.count) <= 2);
  }));
}

// No link passes more than its bandwidth: between the first entry and the last end of its flows it
// has time for all their bytes; and no flow beats its links alone.
TEST_CASE("no link carries more than it can", "[flows]") {
  REQUIRE(rc::check([] {
    const Case one = any_case(17, 100);
    const FlowTimes times = run_flows(one.topology, one.flows);
    struct Load {
      double bytes = 0;
      Picoseconds first{INT64_MAX}, last;
    };
    std::map<int, Load> loads;
    for (std::size_t index = 0; index < one.flows.size(); ++index) {
      const Flow& flow = one.flows[index];
      if (!sends(flow)) {
        REQUIRE(times.finish[index] == flow.start);
        continue;
      }
      const Route route = one.topology.route(flow.source, flow.destination);
      const Picoseconds entry = flow.start + one.topology.latency(route);
      for (const int link : route) {
        Load& load = loads[link];
        load.bytes += static_cast<double>(flow.bytes);
        load.first = std::min(load.first, entry);
        load.last = std::max(load.last, times.finish[index]);
        const double speed =
            one.topology.links[static_cast<std::size_t>(link)].bandwidth.bytes_per_second;
        REQUIRE(static_cast<double>((times.finish[index] - entry).count) + 2 >=
                static_cast<double>(flow.bytes) / speed * 1e12);
      }
      REQUIRE(times.makespan >= times.finish[index]);
    }
    for (const auto& [link, load] : loads) {
      const double speed =
          one.topology.links[static_cast<std::size_t>(link)].bandwidth.bytes_per_second;
      REQUIRE(static_cast<double>((load.last - load.first).count) + 2 >= load.bytes / speed * 1e12);
    }
  }));
}

// Half the bandwidth everywhere, no latency, starts at twice the time: everything takes twice as
// long, to the rounding of each. In particular nothing ends earlier on slower links.
TEST_CASE("times scale with all bandwidths together", "[flows]") {
  REQUIRE(rc::check([] {
    Case one = any_case();
    for (Link& link : one.topology.links) link.latency = Picoseconds(0);
    const FlowTimes fast = run_flows(one.topology, one.flows);
    for (Link& link : one.topology.links) {
      link.bandwidth = Bandwidth(link.bandwidth.bytes_per_second / 2);
    }
    for (Flow& flow : one.flows) flow.start += flow.start;
    const FlowTimes slow = run_flows(one.topology, one.flows);
    for (std::size_t flow = 0; flow < one.flows.size(); ++flow) {
      require_near(slow.finish[flow], 2.0L * static_cast<long double>(fast.finish[flow].count),
                   "flow");
    }
  }));
}

TEST_CASE("names of ranks and the order of flows do not matter", "[flows]") {
  REQUIRE(rc::check([] {
    const int ranks = *rc::gen::inRange(2, 9);
    Case one = any_case();
    one.topology = switch_of(ranks);
    for (Link& link : one.topology.links) {
      link.bandwidth = Bandwidth(1e9 * *rc::gen::inRange(1, 100));
    }
    for (Flow& flow : one.flows) {
      flow.source %= ranks;
      flow.destination %= ranks;
    }
    const FlowTimes before = run_flows(one.topology, one.flows, {.fold = false});
    // Rank r becomes ranks - 1 - r, the flows come in reverse.
    std::reverse(one.topology.outer.port_up.begin(), one.topology.outer.port_up.end());
    std::reverse(one.topology.outer.port_down.begin(), one.topology.outer.port_down.end());
    std::reverse(one.flows.begin(), one.flows.end());
    for (Flow& flow : one.flows) {
      flow.source = ranks - 1 - flow.source;
      flow.destination = ranks - 1 - flow.destination;
    }
    const FlowTimes after = run_flows(one.topology, one.flows, {.fold = false});
    for (std::size_t flow = 0; flow < one.flows.size(); ++flow) {
      require_near(after.finish[one.flows.size() - 1 - flow],
                   static_cast<long double>(before.finish[flow].count), "flow");
    }
  }));
}
