#include "sim/network/flows/flow_fabric.hpp"

#include <algorithm>

#include "sim/base/random.hpp"
#include "sim/engine/dataflow.hpp"
#include "sim/network/exchange/port_clock.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_exchange.hpp"

namespace moesim::engine {
namespace {

// Compute of each rank's own length, then an exchange by matrix in groups.
Program compute_then_exchange(int ranks, int group) {
  Program program;
  program.ranks = ranks;
  program.partitions = {blocks(ranks, group)};
  Operation work;
  work.name = "work";
  program.add(work);
  Operation exchange;
  exchange.name = "exchange";
  exchange.stream = StreamKind::communication;
  exchange.groups = 0;
  exchange.after = {0};
  program.add(exchange);
  return program;
}

Durations of(const std::vector<std::int64_t>& work) {
  Durations durations;
  durations.uniform.resize(2);
  durations.per_rank.resize(2);
  for (const std::int64_t each : work) durations.per_rank[0].emplace_back(each);
  return durations;
}

class Matrices final : public Traffic {
 public:
  explicit Matrices(std::vector<ByteMatrix> of_group) : of_group_(std::move(of_group)) {}
  bool is_uneven(int operation) const override { return operation == 1; }
  void fill(int /*operation*/, int group, ByteMatrix& bytes) const override {
    bytes = of_group_[static_cast<std::size_t>(group)];
  }

 private:
  std::vector<ByteMatrix> of_group_;
};

ByteMatrix drawn(int ranks, std::uint32_t seed) {
  Stream stream({seed, Purpose::test_data, 0, 0, 0});
  ByteMatrix bytes(ranks);
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (stream.next_u32() % 3 > 0) bytes.at(source, destination) = stream.next_u32() % 100'000;
    }
  }
  return bytes;
}

// Two leaves of two ranks, 1 byte per ps each port, half of that between the leaves.
network::Topology two_leaves() {
  network::Topology topology = network::crossbar(4, Bandwidth(1e12), Picoseconds(0));
  network::Tier leaves;
  leaves.switch_of = {0, 0, 1, 1};
  for (int leaf = 0; leaf < 2; ++leaf) {
    leaves.up.push_back(static_cast<int>(topology.links.size()));
    topology.links.push_back({"leaf up", Bandwidth(0.5e12), Picoseconds(0)});
    leaves.down.push_back(static_cast<int>(topology.links.size()));
    topology.links.push_back({"leaf down", Bandwidth(0.5e12), Picoseconds(0)});
  }
  topology.outer.tiers.push_back(leaves);
  return topology;
}

}  // namespace

TEST_CASE("two exchanges that meet on a link slow each other down") {
  // Groups {0, 2} and {1, 3} would be strided; here ranks of a group are 0, 1 and 2, 3, and each
  // sends 600 to the other from leaf 0 up to leaf 1: 0.5 bytes per ps for both.
  network::Topology topology = two_leaves();
  topology.outer.tiers[0].switch_of = {0, 1, 0, 1};  // ranks 0 and 2 on leaf 0
  const Program program = compute_then_exchange(4, 2);
  ByteMatrix one_way(2);
  one_way.at(0, 1) = 600;
  const Matrices traffic({one_way, one_way});
  // The first group begins at 0, alone at 0.5: 200 through at 400. Then both at 0.25: the first has
  // its last 400 at 400 + 1600 = 2000; the second has 400 by then, and the rest at 0.5 by 2400.
  network::FlowFabric fabric(topology);
  const Execution execution = run(program, of({0, 0, 400, 0}), fabric, &traffic);
  CHECK(execution.end_of(0) == Picoseconds(2000));
  CHECK(execution.end_of(1) == Picoseconds(2000));
  CHECK(execution.end_of(2) == Picoseconds(2400));
  CHECK(execution.end_of(3) == Picoseconds(2400));
  CHECK(execution.start[execution.at(1, 3)] == Picoseconds(0));
}

TEST_CASE("an exchange by itself takes what its flows take") {
  const network::Topology topology = network::crossbar(6, Bandwidth(50e9), Picoseconds(500));
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    Stream stream({seed, Purpose::test_data, 1, 0, 0});
    std::vector<std::int64_t> work;
    std::vector<Picoseconds> arrival;
    for (int rank = 0; rank < 6; ++rank) {
      work.push_back(stream.next_u32() % 3'000'000);
      arrival.emplace_back(work.back());
    }
    const ByteMatrix bytes = drawn(6, seed);
    const network::FlowTimes exact = network::run_exchange(topology, bytes, arrival);
    network::FlowFabric fabric(topology);
    const Matrices traffic({bytes});
    const Execution execution = run(compute_then_exchange(6, 6), of(work), fabric, &traffic);
    network::PortClock clock(topology);
    const Execution fast =
        run_alone(compute_then_exchange(6, 6), of(work), {&traffic, &clock}, Folding::off);
    const auto last = [](const Execution& times) { return times.end_of(times.slowest_rank()); };
    // The last port never needs longer than the exchange, but for the rounding of a picosecond, and
    // the exchange at most twice as long: port_bounder.hpp, for bursts.
    CHECK(last(fast) <= last(execution) + Picoseconds(1));
    CHECK(last(execution) - Picoseconds(1) <= last(fast) + last(fast));
    for (int rank = 0; rank < 6; ++rank) {
      const Picoseconds finish = std::max(exact.rank_finish[static_cast<std::size_t>(rank)],
                                          arrival[static_cast<std::size_t>(rank)]);
      CHECK(execution.end_of(rank) == finish);
    }
  }
}

TEST_CASE("on ports that nobody shares, messages of one port end when it is through") {
  // A uniform burst: every port is full to the end, so that fast and exact agree.
  const network::Topology topology = network::crossbar(8, Bandwidth(50e9), Picoseconds(500));
  ByteMatrix bytes(8);
  for (int source = 0; source < 8; ++source) {
    for (int destination = 0; destination < 8; ++destination)
      bytes.at(source, destination) = 1 << 20;
  }
  const Matrices traffic({bytes});
  const Program program = compute_then_exchange(8, 8);
  const Durations durations = of(std::vector<std::int64_t>(8, 1000));
  network::FlowFabric fabric(topology);
  const Execution exact = run(program, durations, fabric, &traffic);
  network::PortClock clock(topology);
  const Execution fast = run_alone(program, durations, {&traffic, &clock});
  // 1 ns + 1 ns + 7 MiB / 50e9 B/s.
  CHECK(exact.end_of(0) == Picoseconds(2000 + 146'800'640));
  CHECK(fast.end_of(0) == exact.end_of(0));
  CHECK(fast.end_of(7) == exact.end_of(7));
}

}  // namespace moesim::engine
