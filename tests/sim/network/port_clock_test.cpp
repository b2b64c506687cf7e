#include "sim/network/exchange/port_clock.hpp"

#include <algorithm>
#include <numeric>

#include "sim/base/random.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_exchange.hpp"

namespace moesim::network {
namespace {

std::vector<Picoseconds> finish_of(const Topology& topology, const ByteMatrix& bytes,
                                   std::vector<Picoseconds> start = {}) {
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  if (start.empty()) start.resize(ranks);
  std::vector<Picoseconds> finish(ranks);
  PortClock(topology).finish(members, bytes, start, finish);
  return finish;
}

// Domains of equal size, ports of any latency, and perhaps tiers of switches that block nothing.
Topology drawn(Stream& stream) {
  const auto upto = [&](std::uint32_t most) { return stream.next_u32() % (most + 1); };
  const int ranks = 2 + static_cast<int>(upto(12));
  const int domain = 1 + static_cast<int>(upto(3));
  const bool equal = upto(2) == 0;
  Topology topology;
  const auto add = [&](double rate) {
    topology.links.push_back(
        {"link", Bandwidth(rate), Picoseconds(equal ? 500'000 : upto(2'000'000))});
    return static_cast<int>(topology.links.size()) - 1;
  };
  for (int rank = 0; rank < ranks; ++rank) {
    topology.domain_of.push_back(rank / domain);
    topology.inner.port_up.push_back(add(400e9));
    topology.inner.port_down.push_back(add(400e9));
    topology.outer.port_up.push_back(add(25e9 * (1 + upto(2))));
    topology.outer.port_down.push_back(add(25e9 * (1 + upto(2))));
  }
  int below = 1;
  for (std::uint32_t levels = upto(2); levels > 0; --levels) {
    Tier tier;
    below += static_cast<int>(upto(2));
    for (int rank = 0; rank < ranks; ++rank) tier.switch_of.push_back(rank / domain / below);
    for (int number = 0; number <= tier.switch_of.back(); ++number) {
      tier.up.push_back(add(75e9 * ranks));
      tier.down.push_back(add(75e9 * ranks));
    }
    topology.outer.tiers.push_back(std::move(tier));
    below *= 2;
  }
  return topology;
}

}  // namespace

TEST_CASE("a lone message takes the latency of every switch on its way") {
  for (const char* name : {"gb200-nvl72", "hgx-b200", "hgx-h100", "dgx-a100"}) {
    const auto cluster = cluster::Cluster::load(name);
    const int ranks = cluster.max_gpus() > 0 ? std::min(cluster.max_gpus(), 288) : 288;
    const Topology topology = topology_of(cluster, cluster::contiguous_placement(ranks));
    for (const int receiver : {1, 9, 150, ranks - 1}) {
      ByteMatrix bytes(ranks);
      bytes.at(0, receiver) = 1000;
      const Picoseconds exact = run_exchange(topology, bytes).makespan;
      const std::vector<Picoseconds> finish = finish_of(topology, bytes);
      INFO(name << " to " << receiver);
      CHECK(std::abs(finish[static_cast<std::size_t>(receiver)].count - exact.count) <= 1);
      CHECK(std::abs(finish[0].count - exact.count) <= 1);
    }
  }
}

TEST_CASE("the clock never exceeds the exact end, whatever the latencies") {
  int equal = 0;
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    Stream stream({seed, Purpose::test_data, 0, 0, 0});
    const Topology topology = drawn(stream);
    const int ranks = topology.ranks();
    ByteMatrix bytes(ranks);
    for (int source = 0; source < ranks; ++source) {
      for (int other = 0; other < ranks; ++other) {
        if (source != other && stream.next_u32() % 2 == 0) {
          bytes.at(source, other) = stream.next_u32() % (1 << 20);
        }
      }
    }
    std::vector<Picoseconds> start;
    for (int rank = 0; rank < ranks; ++rank) {
      start.emplace_back(seed % 2 == 0 ? 0 : stream.next_u32() % 100'000'000);
    }
    const std::vector<Picoseconds> finish = finish_of(topology, bytes, start);
    const Picoseconds last = *std::max_element(finish.begin(), finish.end());
    const Picoseconds exact = std::max(run_exchange(topology, bytes, start).makespan,
                                       *std::max_element(start.begin(), start.end()));
    INFO("seed " << seed);
    // The flows' ends are whole picoseconds.
    REQUIRE(last <= exact + Picoseconds(3));
    if (last >= exact - Picoseconds(3)) ++equal;
  }
  // A lower bound that is often the answer, not a trivial one.
  CHECK(equal > 1000);
}

TEST_CASE("ranks without a port are no obstacle") {
  // A lone rank in its domain needs no port inside.
  Topology topology = crossbar(3, Bandwidth(50e9), Picoseconds(500'000));
  topology.domain_of = {0, 0, 1};
  for (int link = 0; link < 4; ++link) {
    topology.links.push_back({"inner", Bandwidth(400e9), Picoseconds(500'000)});
  }
  topology.inner.port_up = {6, 7, -1};
  topology.inner.port_down = {8, 9};
  ByteMatrix bytes(3);
  bytes.at(0, 1) = 400'000;
  bytes.at(2, 0) = 100'000;
  const std::vector<Picoseconds> finish = finish_of(topology, bytes);
  CHECK(finish[1] == Picoseconds(2'000'000));
  CHECK(finish[2] == Picoseconds(3'000'000));
}

}  // namespace moesim::network
