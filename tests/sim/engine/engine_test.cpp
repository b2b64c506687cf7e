#include "sim/engine/engine.hpp"

#include <algorithm>
#include <stdexcept>

#include "sim/engine/critical_path.hpp"
#include "tests/support/catch.hpp"

namespace moesim::engine {
namespace {

Operation compute(const std::string& name, std::vector<int> after = {}) {
  Operation operation;
  operation.name = name;
  operation.after = std::move(after);
  return operation;
}

Operation collective(const std::string& name, int partition, std::vector<int> after = {}) {
  Operation operation = compute(name, std::move(after));
  operation.stream = StreamKind::communication;
  operation.category = 1;
  operation.groups = partition;
  return operation;
}

Durations uniform(std::initializer_list<std::int64_t> values) {
  Durations durations;
  for (const std::int64_t value : values) durations.uniform.emplace_back(value);
  durations.per_rank.resize(values.size());
  return durations;
}

Execution run_alone(const Program& program, const Durations& durations) {
  network::IdleFabric fabric;
  return run(program, durations, fabric);
}

}  // namespace

TEST_CASE("a stream runs its operations one after another") {
  Program program;
  program.ranks = 2;
  program.add(compute("a"));
  program.add(compute("b"));
  const Execution execution = run_alone(program, uniform({30, 12}));
  CHECK(execution.start[execution.at(1, 1)] == Picoseconds(30));
  CHECK(execution.end_of(1) == Picoseconds(42));
}

// Each of 60 days, which simulated time holds; both do not.
TEST_CASE("a run beyond the reach of simulated time is an error") {
  Program program;
  program.ranks = 1;
  program.add(compute("a"));
  program.add(compute("b"));
  const std::int64_t sixty_days = Picoseconds::from_us(60 * 86400e6).count;
  CHECK_NOTHROW(run_alone(program, uniform({sixty_days, 1})));
  CHECK_THROWS_WITH(run_alone(program, uniform({sixty_days, sixty_days})),
                    ContainsSubstring("106 days"));
}

TEST_CASE("a collective begins with its last member and ends for all at once") {
  // Rank 0 computes 10, rank 1 computes 70; the exchange of 5 runs from 70 to 75 on both, and what
  // follows it starts at 75.
  Program program;
  program.ranks = 2;
  program.partitions = {blocks(2, 2)};
  const int first = program.add(compute("first"));
  const int exchange = program.add(collective("exchange", 0, {first}));
  program.add(compute("second", {exchange}));
  Durations durations = uniform({0, 5, 1});
  durations.per_rank[0] = {Picoseconds(10), Picoseconds(70)};
  const Execution execution = run_alone(program, durations);
  CHECK(execution.start[execution.at(exchange, 0)] == Picoseconds(10));
  CHECK(execution.began[execution.at(exchange, 0)] == Picoseconds(70));
  CHECK(execution.finish[execution.at(exchange, 0)] == Picoseconds(75));
  CHECK(execution.end_of(0) == Picoseconds(76));
  CHECK(execution.end_of(1) == Picoseconds(76));
}

TEST_CASE("groups of one collective do not wait for each other") {
  Program program;
  program.ranks = 4;
  program.partitions = {strided(4, 2)};  // {0, 2} and {1, 3}
  const int first = program.add(compute("first"));
  program.add(collective("exchange", 0, {first}));
  Durations durations = uniform({0, 5});
  durations.per_rank[0] = {Picoseconds(10), Picoseconds(20), Picoseconds(30), Picoseconds(40)};
  const Execution execution = run_alone(program, durations);
  CHECK(execution.end_of(0) == Picoseconds(35));
  CHECK(execution.end_of(2) == Picoseconds(35));
  CHECK(execution.end_of(1) == Picoseconds(45));
  CHECK(execution.slowest_rank() == 1);
}

TEST_CASE("compute that needs no exchange runs while one is under way") {
  // The exchange takes 50 from 10 on; `hidden` (30) fits beside it, `after` waits for both: 60 + 7.
  Program program;
  program.ranks = 1;
  program.partitions = {blocks(1, 1)};
  const int first = program.add(compute("first"));
  const int exchange = program.add(collective("exchange", 0, {first}));
  program.add(compute("hidden"));
  program.add(compute("after", {exchange}));
  const Execution execution = run_alone(program, uniform({10, 50, 30, 7}));
  CHECK(execution.start[execution.at(2, 0)] == Picoseconds(10));
  CHECK(execution.end_of(0) == Picoseconds(67));
  const std::vector<PathStep> path = critical_path(program, execution);
  REQUIRE(path.size() == 3);
  CHECK(path[0].operation == 3);
  CHECK(path[1].operation == exchange);
  CHECK(path[2].operation == first);
}

TEST_CASE("time that an operation loses to another counts as that one's on the path") {
  Program program;
  program.ranks = 1;
  program.partitions = {blocks(1, 1)};
  const int first = program.add(compute("first"));
  const int exchange = program.add(collective("exchange", 0, {first}));
  const int beside = program.add(compute("beside"));
  program.add(compute("after", {exchange}));
  Execution execution = run_alone(program, uniform({10, 50, 30, 7}));
  execution.lost = {{exchange, beside, Picoseconds(20)}};
  const std::vector<PathStep> path = critical_path(program, execution);
  REQUIRE(path.size() == 4);
  CHECK(path[1].operation == beside);
  CHECK(path[1].duration == Picoseconds(20));
  CHECK(path[2].operation == exchange);
  CHECK(path[2].duration == Picoseconds(30));
}

TEST_CASE("the critical path is of the rank that others wait for, from exchange to exchange") {
  Program program;
  program.ranks = 3;
  program.partitions = {blocks(3, 3)};
  Durations durations;
  for (int layer = 0; layer < 20; ++layer) {
    std::vector<int> after;
    if (layer > 0) after = {3 * layer - 1};
    program.add(compute("work", after));
    program.add(compute("more"));
    program.add(collective("exchange", 0, {3 * layer + 1}));
    std::vector<Picoseconds> work;
    for (int rank = 0; rank < 3; ++rank) work.emplace_back(17 + (layer * 7 + rank * 5) % 11);
    durations.per_rank.insert(durations.per_rank.end(), {work, {}, {}});
    durations.uniform.insert(durations.uniform.end(),
                             {Picoseconds(0), Picoseconds(3), Picoseconds(8)});
  }
  const Execution execution = run_alone(program, durations);
  for (int rank = 0; rank < 3; ++rank) {
    Picoseconds own;
    for (const PathStep& stretch : path_of_rank(program, execution, rank)) own += stretch.duration;
    CHECK(own == execution.end_of(rank));
  }
  // The longest work of each layer, on whatever rank, and no wait.
  Picoseconds sum;
  for (const PathStep& stretch : critical_path(program, execution)) {
    sum += stretch.duration;
    if (stretch.operation % 3 == 2) CHECK(stretch.duration == Picoseconds(8));
    if (stretch.operation % 3 != 0) continue;
    const auto& work = durations.per_rank[static_cast<std::size_t>(stretch.operation)];
    CHECK(stretch.duration == *std::max_element(work.begin(), work.end()));
  }
  CHECK(sum == execution.end_of(execution.slowest_rank()));
}

TEST_CASE("an exchange beside the critical path is looked at on the rank of the path there") {
  // Rank 1 is 20 later at the first exchange, rank 0 computes longer behind it: the path goes from
  // rank 1 to rank 0, on which the second exchange is hidden.
  Program program;
  program.ranks = 2;
  program.partitions = {blocks(2, 2)};
  const int first = program.add(compute("first"));
  const int exchange = program.add(collective("exchange", 0, {first}));
  program.add(compute("longer", {exchange}));
  program.add(collective("hidden", 0, {exchange}));
  program.add(compute("last"));
  Durations durations = uniform({0, 8, 0, 4, 7});
  durations.per_rank[0] = {Picoseconds(10), Picoseconds(30)};
  durations.per_rank[2] = {Picoseconds(50), Picoseconds(5)};
  const Execution execution = run_alone(program, durations);
  CHECK(execution.end_of(0) == Picoseconds(95));
  CHECK(ranks_of_path(program, execution) == std::vector<int>{1, 0, 0, 0, 0});
}

TEST_CASE("exchanges come to the fabric in the order of time") {
  // Rank 1 is ready for its exchange long before rank 0, whose number is lower.
  struct Recorder final : network::Fabric {
    network::IdleFabric inner;
    std::vector<Picoseconds> begun;
    void begin(int exchange, Picoseconds now, Picoseconds alone) override {
      begun.push_back(now);
      inner.begin(exchange, now, alone);
    }
    std::optional<network::Completion> next() override { return inner.next(); }
    void take() override {
      begun.push_back(inner.next()->time);
      inner.take();
    }
  } fabric;
  Program program;
  program.ranks = 2;
  program.partitions = {blocks(2, 1)};
  for (int round = 0; round < 4; ++round) {
    program.add(compute("work", round == 0 ? std::vector<int>{} : std::vector<int>{2 * round - 1}));
    program.add(collective("exchange", 0, {2 * round}));
  }
  Durations durations = uniform({0, 4, 0, 4, 0, 4, 0, 4});
  for (int round = 0; round < 4; ++round) {
    durations.per_rank[2 * static_cast<std::size_t>(round)] = {Picoseconds(100), Picoseconds(31)};
  }
  run(program, durations, fabric);
  CHECK(fabric.begun.size() == 16);
  CHECK(std::is_sorted(fabric.begun.begin(), fabric.begun.end()));
}

TEST_CASE("a fabric may end an exchange for one member after another") {
  struct OneByOne final : network::Fabric {
    std::vector<network::Completion> waiting;
    void begin(int exchange, Picoseconds now, Picoseconds alone) override {
      waiting.push_back({now + alone + alone, exchange, 0});
      waiting.push_back({now + alone, exchange, 1});
    }
    std::optional<network::Completion> next() override {
      if (waiting.empty()) return std::nullopt;
      return waiting.back();
    }
    void take() override { waiting.pop_back(); }
  } fabric;
  Program program;
  program.ranks = 2;
  program.partitions = {blocks(2, 2)};
  const int exchange = program.add(collective("exchange", 0));
  program.add(compute("after", {exchange}));
  const Execution execution = run(program, uniform({10, 1}), fabric);
  CHECK(execution.end_of(0) == Picoseconds(21));
  CHECK(execution.end_of(1) == Picoseconds(11));
}

TEST_CASE("a dependency on a later operation is reported, not waited for") {
  Program program;
  program.ranks = 1;
  program.add(compute("first", {1}));
  program.add(compute("second"));
  CHECK_THROWS_AS(run_alone(program, uniform({1, 1})), std::logic_error);
}

}  // namespace moesim::engine
