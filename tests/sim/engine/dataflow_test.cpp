#include "sim/engine/dataflow.hpp"

#include <algorithm>

#include "sim/base/random.hpp"
#include "sim/engine/contended.hpp"
#include "sim/engine/fold.hpp"
#include "sim/network/exchange/port_clock.hpp"
#include "tests/support/catch.hpp"

namespace moesim::engine {
namespace {

// Layers of compute, a collective in blocks, compute beside it, a strided one, and one in the
// gradients' stream that no layer waits for: all that a program can hold.
Program layered(int ranks, int block, int layers) {
  Program program;
  program.ranks = ranks;
  program.partitions = {blocks(ranks, block), strided(ranks, block), blocks(ranks, ranks)};
  std::vector<int> before{};
  int gradients = -1;
  for (int layer = 0; layer < layers; ++layer) {
    const auto add = [&](StreamKind stream, int groups, std::vector<int> after) {
      Operation operation;
      operation.name = "operation";
      operation.stream = stream;
      operation.groups = groups;
      operation.after = std::move(after);
      return program.add(std::move(operation));
    };
    const int work = add(StreamKind::compute, -1, before);
    const int exchange = add(StreamKind::communication, 0, {work});
    add(StreamKind::compute, -1, {});  // while the exchange is under way
    const int more = add(StreamKind::compute, -1, {exchange});
    const int reduction = add(StreamKind::communication, layer % 2 == 0 ? 1 : 2, {more});
    before = {reduction};
    gradients = add(StreamKind::gradients, layer % 2 == 0 ? 2 : 1, {more});
  }
  Operation last;
  last.name = "operation";
  last.after = {before.front(), gradients};
  program.add(std::move(last));
  return program;
}

// Durations that differ from rank to rank up to `period` and repeat from there on.
Durations drawn(const Program& program, int period, std::uint32_t seed) {
  Durations durations;
  Stream stream({seed, Purpose::test_data, 0, 0, 0});
  for (const Operation& operation : program.operations) {
    durations.uniform.emplace_back(stream.next_u32() % 1000);
    std::vector<Picoseconds> each;
    if (operation.groups < 0 && stream.next_u32() % 2 == 0) {
      for (int rank = 0; rank < program.ranks; ++rank) {
        each.push_back(rank < period ? Picoseconds(stream.next_u32() % 1000)
                                     : each[static_cast<std::size_t>(rank - period)]);
      }
    }
    durations.per_rank.push_back(std::move(each));
  }
  return durations;
}

// Matrices drawn from (operation, group modulo `patterns`).
class DrawnTraffic final : public Traffic {
 public:
  DrawnTraffic(const Program& program, int patterns) : program_(program), patterns_(patterns) {}
  bool is_uneven(int operation) const override {
    return program_.operations[static_cast<std::size_t>(operation)].groups == 0;
  }
  void fill(int operation, int group, ByteMatrix& bytes) const override {
    Stream stream({7, Purpose::test_data, 0, static_cast<std::uint32_t>(operation),
                   static_cast<std::uint32_t>(pattern(operation, group))});
    for (int source = 0; source < bytes.ranks(); ++source) {
      for (int destination = 0; destination < bytes.ranks(); ++destination) {
        bytes.at(source, destination) = stream.next_u32() % 4 == 0 ? 0 : stream.next_u32() % 5000;
      }
    }
  }
  int pattern(int /*operation*/, int group) const override { return group % patterns_; }

 private:
  const Program& program_;
  int patterns_;
};

bool same(const Execution& first, const Execution& second, const Program& program) {
  for (int op = 0; op < static_cast<int>(program.operations.size()); ++op) {
    for (int rank = 0; rank < program.ranks; ++rank) {
      const std::size_t a = first.at(op, rank);
      const std::size_t b = second.at(op, rank);
      if (first.start[a] != second.start[b] || first.began[a] != second.began[b] ||
          first.finish[a] != second.finish[b]) {
        return false;
      }
    }
  }
  return first.slowest_rank() == second.slowest_rank() && first.end_of(3) == second.end_of(3);
}

Operation exchange_of(int groups) {
  Operation operation;
  operation.name = "exchange";
  operation.stream = StreamKind::communication;
  operation.groups = groups;
  return operation;
}

// One matrix for every exchange.
struct OneMatrix final : Traffic {
  ByteMatrix matrix;
  explicit OneMatrix(ByteMatrix bytes) : matrix(std::move(bytes)) {}
  int pattern(int /*operation*/, int /*group*/) const override { return 0; }
  bool is_uneven(int operation) const override { return operation % 2 == 1; }
  void fill(int /*operation*/, int /*group*/, ByteMatrix& bytes) const override { bytes = matrix; }
};

}  // namespace

TEST_CASE("one pass over a program gives the times of its events, to the bit") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Program program = layered(24, 4, 6);
    const Durations durations = drawn(program, 24, seed);
    network::IdleFabric fabric;
    const Execution events = run(program, durations, fabric);
    CHECK(same(events, run_alone(program, durations, {}, Folding::off), program));
    CHECK(same(events, run_alone(program, durations, {}, Folding::on), program));
  }
}

TEST_CASE("ranks pass by a skipped collective as they arrive, in every run alike") {
  const Program program = layered(24, 4, 6);
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Durations durations = drawn(program, seed % 2 == 0 ? 24 : 8, seed);
    const Execution meeting = run_alone(program, durations, {}, Folding::off);
    Stream stream({seed, Purpose::test_data, 1, 0, 0});
    durations.skipped.resize(program.operations.size());
    for (std::size_t op = 0; op < program.operations.size(); ++op) {
      durations.skipped[op] = program.operations[op].groups >= 0 && stream.next_u32() % 2 == 0;
    }
    network::IdleFabric fabric;
    const Execution events = run(program, durations, fabric);
    CHECK(same(events, run_alone(program, durations, {}, Folding::off), program));
    CHECK(same(events, run_alone(program, durations, {}, Folding::on), program));
    CHECK(same(events, run_contended(program, durations, {}), program));
    bool sooner = false;
    for (int op = 0; op < static_cast<int>(program.operations.size()); ++op) {
      for (int rank = 0; rank < program.ranks; ++rank) {
        const std::size_t cell = events.at(op, rank);
        if (durations.skips(op)) CHECK(events.finish[cell] == events.start[cell]);
        CHECK(events.finish[cell] <= meeting.finish[cell]);
        sooner = sooner || events.finish[cell] < meeting.finish[cell];
      }
    }
    CHECK(sooner);
  }
  Durations equal = drawn(program, 1, 3);
  equal.skipped.assign(program.operations.size(), true);
  CHECK(run_alone(program, equal).columns == 1);
}

TEST_CASE("folded ranks have the times they have unfolded, to the bit") {
  for (const int period : {1, 4, 8, 12, 24}) {
    const Program program = layered(24, 4, 5);
    const Durations durations = drawn(program, period, 3);
    const Execution all = run_alone(program, durations, {}, Folding::off);
    const Execution folded = run_alone(program, durations, {}, Folding::on);
    CHECK(all.columns == 24);
    CHECK(same(all, folded, program));
    // Equal durations fold; a world collective and strides of 4 keep periods of 4 and more apart.
    CHECK(folded.columns == period);
  }
}

TEST_CASE("groups with equal matrices and durations are folded, place by place") {
  const Program program = layered(24, 4, 5);
  const network::Topology topology = network::crossbar(24, Bandwidth(1e9), Picoseconds(500));
  network::PortClock clock(topology);
  for (const int patterns : {1, 2, 3, 6}) {
    const DrawnTraffic traffic(program, patterns);
    const Durations durations = drawn(program, 4 * patterns, 5);
    const Exchanges exchanges{&traffic, &clock};
    const Execution all = run_alone(program, durations, exchanges, Folding::off);
    const Execution folded = run_alone(program, durations, exchanges, Folding::on);
    CHECK(same(all, folded, program));
    CHECK(folded.columns == 4 * patterns);
  }
}

// Nodes of 8: 400 bytes per ns to each other, 50 to other nodes.
network::Topology nodes_of_8(int ranks) {
  network::Topology topology = network::crossbar(ranks, Bandwidth(50e9), Picoseconds(500'000));
  for (int rank = 0; rank < ranks; ++rank) {
    topology.domain_of[static_cast<std::size_t>(rank)] = rank / 8;
    for (std::vector<int>* ports : {&topology.inner.port_up, &topology.inner.port_down}) {
      ports->push_back(static_cast<int>(topology.links.size()));
      topology.links.push_back({"inner", Bandwidth(400e9), Picoseconds(250'000)});
    }
  }
  return topology;
}

TEST_CASE("groups that lie differently on the nodes, or have a slow link, are not folded") {
  // Groups of 6 on nodes of 8: 0 .. 5 share a node, 6 .. 11 and 12 .. 17 straddle two, 18 .. 23
  // share one.
  Program program;
  program.ranks = 24;
  program.partitions = {blocks(24, 6)};
  program.add({});
  program.add(exchange_of(0));
  program.operations[1].after = {0};
  Durations durations;
  durations.uniform.resize(2);
  durations.per_rank.resize(2);
  ByteMatrix bytes(6);
  for (int source = 0; source < 6; ++source) std::fill_n(bytes.row(source), 6, 1 << 20);
  const OneMatrix traffic(bytes);
  network::Topology topology = nodes_of_8(24);
  const auto compare = [&](int columns) {
    network::PortClock clock(topology);
    const Exchanges exchanges{&traffic, &clock};
    const Execution all = run_alone(program, durations, exchanges, Folding::off);
    const Execution folded = run_alone(program, durations, exchanges, Folding::on);
    CHECK(same(all, folded, program));
    CHECK(folded.columns == columns);
    return folded;
  };
  // 2 of 6..11 send to 4 in the other node: 4 MiB over a NIC, 83.886 us and 1 us of latency, and
  // the other way round for 12 .. 17. Two groups inside a node are one.
  const Execution calm = compare(18);
  CHECK(calm.end_of(0).us() == Approx(0.5 + 5 * 1.048576 / 0.4));
  CHECK(calm.end_of(6).us() == Approx(1 + 4 * 1.048576 / 0.05));
  CHECK(calm.end_of(18) == calm.end_of(0));
  const auto slow = static_cast<std::size_t>(topology.inner.port_up[20]);
  topology.links[slow].bandwidth = Bandwidth(200e9);
  CHECK(compare(24).end_of(20).us() == Approx(0.5 + 5 * 1.048576 / 0.2));
  topology.links[slow] = {"far", Bandwidth(400e9), Picoseconds(750'000)};
  CHECK(compare(24).end_of(20).us() == Approx(1 + 5 * 1.048576 / 0.4));
}

TEST_CASE("members of an uneven exchange go on when their own messages are through") {
  // 1 byte per ps, no latency. 0 -> 1: 300, 1 -> 0: 100, 2 -> 1: 50. The port into 1 carries 350
  // and shares itself: the 50 of 2 are through at 100, the 300 of 0 with the port, at 350. 3 has
  // nothing to do.
  Program program;
  program.ranks = 4;
  program.partitions = {blocks(4, 4)};
  Operation work;
  work.name = "work";
  program.add(work);
  program.add(exchange_of(0));
  program.operations[1].after = {0};
  work.after = {1};
  program.add(work);
  ByteMatrix bytes(4);
  bytes.at(0, 1) = 300;
  bytes.at(1, 0) = 100;
  bytes.at(2, 1) = 50;
  bytes.at(3, 3) = 1'000'000;  // a copy
  const OneMatrix traffic(bytes);
  const network::Topology topology = network::crossbar(4, Bandwidth(1e12), Picoseconds(0));
  network::PortClock clock(topology);
  Durations durations;
  durations.uniform = {Picoseconds(0), Picoseconds(0), Picoseconds(7)};
  durations.per_rank.resize(3);
  const Execution together = run_alone(program, durations, {&traffic, &clock});
  CHECK(together.end_of(0) == Picoseconds(357));
  CHECK(together.end_of(1) == Picoseconds(357));
  CHECK(together.end_of(2) == Picoseconds(107));
  CHECK(together.end_of(3) == Picoseconds(7));
  // Rank 2 comes 400 late: its 50 bytes end at 450; 3 waits for nobody.
  durations.per_rank[0] = {Picoseconds(0), Picoseconds(0), Picoseconds(400), Picoseconds(90)};
  const Execution late = run_alone(program, durations, {&traffic, &clock});
  CHECK(late.end_of(1) == Picoseconds(457));
  CHECK(late.end_of(2) == Picoseconds(457));
  CHECK(late.end_of(3) == Picoseconds(97));
  // 320 late: the port into 1 has had 300 of the bytes by then, and is done 50 after it.
  durations.per_rank[0][2] = Picoseconds(320);
  CHECK(run_alone(program, durations, {&traffic, &clock}).end_of(1) == Picoseconds(377));
  // 10 late: the port into 1 never idles, 350 as before.
  durations.per_rank[0][2] = Picoseconds(10);
  CHECK(run_alone(program, durations, {&traffic, &clock}).end_of(1) == Picoseconds(357));
}

TEST_CASE("a step is never faster when a rank is slower") {
  const network::Topology topology = network::crossbar(24, Bandwidth(1e9), Picoseconds(500));
  network::PortClock clock(topology);
  const Program program = layered(24, 4, 5);
  const DrawnTraffic traffic(program, 6);
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    Durations durations = drawn(program, 24, seed);
    const Execution before = run_alone(program, durations, {&traffic, &clock});
    const int slow = static_cast<int>(seed) % program.ranks;
    // From a little, which waiting may hide, to more than the whole step.
    const Picoseconds delay(seed % 2 == 0 ? 20 + seed : 1'000'000'000);
    Picoseconds delays;
    for (std::vector<Picoseconds>& each : durations.per_rank) {
      if (each.empty()) continue;
      each[static_cast<std::size_t>(slow)] += delay;
      delays += delay;
    }
    const Execution after = run_alone(program, durations, {&traffic, &clock});
    bool later = true;
    for (int op = 0; op < static_cast<int>(program.operations.size()); ++op) {
      for (int rank = 0; rank < program.ranks; ++rank) {
        later = later && after.finish[after.at(op, rank)] >= before.finish[before.at(op, rank)];
      }
    }
    CHECK(later);
    // The slow rank's own stream has all of it.
    CHECK(after.end_of(slow) >= delays);
  }
}

TEST_CASE("one pass reports an operation that waits for a later one") {
  Program program;
  program.ranks = 1;
  Operation first;
  first.name = "first";
  first.after = {1};
  program.add(first);
  program.add({});
  Durations durations;
  durations.uniform.resize(2);
  durations.per_rank.resize(2);
  CHECK_THROWS_AS(run_alone(program, durations), std::logic_error);
}

}  // namespace moesim::engine
