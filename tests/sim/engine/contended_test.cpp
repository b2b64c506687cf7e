#include "sim/engine/contended.hpp"

#include <cmath>

#include "sim/engine/dataflow.hpp"
#include "tests/support/catch.hpp"

namespace moesim::engine {
namespace {

// first (compute) -> exchange; `beside` runs while the exchange is under way; `after` needs it.
Program beside_an_exchange(int ranks) {
  Program program;
  program.ranks = ranks;
  program.partitions = {blocks(ranks, ranks)};
  Operation first;
  first.name = "first";
  program.add(first);
  Operation exchange;
  exchange.name = "exchange";
  exchange.stream = StreamKind::communication;
  exchange.groups = 0;
  exchange.after = {0};
  program.add(exchange);
  Operation beside;
  beside.name = "beside";
  program.add(beside);
  Operation after;
  after.name = "after";
  after.after = {1};
  program.add(after);
  return program;
}

Durations uniform(std::initializer_list<std::int64_t> values) {
  Durations durations;
  for (const std::int64_t value : values) durations.uniform.emplace_back(value);
  durations.per_rank.resize(values.size());
  return durations;
}

}  // namespace

TEST_CASE("without slowdowns the contended run is the plain one") {
  const Program program = beside_an_exchange(3);
  Durations durations = uniform({0, 50, 30, 7});
  durations.per_rank[0] = {Picoseconds(10), Picoseconds(25), Picoseconds(4)};
  durations.per_rank[2] = {Picoseconds(90), Picoseconds(0), Picoseconds(30)};
  const Execution plain = run_alone(program, durations, {}, Folding::off);
  const Execution contended = run_contended(program, durations, {});
  CHECK(contended.start == plain.start);
  CHECK(contended.began == plain.began);
  CHECK(contended.finish == plain.finish);
}

TEST_CASE("a slowdown is a factor from 1 on") {
  const Program program = beside_an_exchange(1);
  for (const double factor : {0.5, 0.0, -1.0, 1e7, std::nan("")}) {
    CAPTURE(factor);
    CHECK_THROWS_WITH(run_contended(program, uniform({10, 50, 30, 7}), {factor, 1}),
                      ContainsSubstring("Slowdowns::compute"));
    CHECK_THROWS_WITH(run_contended(program, uniform({10, 50, 30, 7}), {1, factor}),
                      ContainsSubstring("Slowdowns::exchange"));
  }
}

TEST_CASE("compute beside an exchange is slowed while the exchange lasts") {
  // Exchange 10 .. 60. Compute of 30 at half speed: 10 .. 70 would do 25 by 60, the rest of 5 at
  // full speed: 65.
  const Program program = beside_an_exchange(1);
  const Execution execution = run_contended(program, uniform({10, 50, 30, 7}), {2, 1});
  CHECK(execution.finish[execution.at(1, 0)] == Picoseconds(60));
  CHECK(execution.finish[execution.at(2, 0)] == Picoseconds(65));
  CHECK(execution.end_of(0) == Picoseconds(72));
  // 20 of compute at half speed: 10 .. 50, inside the exchange.
  const Execution inside = run_contended(program, uniform({10, 50, 20, 7}), {2, 1});
  CHECK(inside.finish[inside.at(2, 0)] == Picoseconds(50));
  CHECK(inside.end_of(0) == Picoseconds(67));
}

TEST_CASE("an exchange is slowed while one of its members computes") {
  // Both arrive at 10. Rank 0 computes 30 from 10 to 40, rank 1 nothing. At two thirds of its speed
  // the exchange has done 20 of its 50 by 40, the rest by 70.
  const Program program = beside_an_exchange(2);
  Durations durations = uniform({10, 50, 0, 7});
  durations.per_rank[2] = {Picoseconds(30), Picoseconds(0)};
  const Execution execution = run_contended(program, durations, {1, 1.5});
  CHECK(execution.finish[execution.at(2, 0)] == Picoseconds(40));
  CHECK(execution.finish[execution.at(1, 0)] == Picoseconds(70));
  CHECK(execution.finish[execution.at(1, 1)] == Picoseconds(70));
  CHECK(execution.end_of(1) == Picoseconds(77));
}

TEST_CASE("both slow each other down") {
  // From 10 on compute of 30 at 1 / 2 and exchange of 50 at 1 / 1.25: compute ends at 70, exchange
  // has done 48 by then and ends at 72.
  const Program program = beside_an_exchange(1);
  const Execution execution = run_contended(program, uniform({10, 50, 30, 7}), {2, 1.25});
  CHECK(execution.finish[execution.at(2, 0)] == Picoseconds(70));
  CHECK(execution.finish[execution.at(1, 0)] == Picoseconds(72));
  CHECK(execution.end_of(0) == Picoseconds(79));
  // Waiting for others slows no rank: rank 1 arrives at 60, and rank 0 has computed from 10 to 40.
  const Program two = beside_an_exchange(2);
  Durations durations = uniform({10, 50, 30, 7});
  durations.per_rank[0] = {Picoseconds(10), Picoseconds(60)};
  durations.per_rank[2] = {Picoseconds(30), Picoseconds(0)};
  const Execution waits = run_contended(two, durations, {2, 1.25});
  CHECK(waits.finish[waits.at(2, 0)] == Picoseconds(40));
  CHECK(waits.finish[waits.at(1, 0)] == Picoseconds(110));
}

TEST_CASE("exchanges of two streams go on at the same time and slow compute once") {
  // Tokens 10 .. 60, gradients 10 .. 40, compute of 30 at half speed until the later one ends: 25
  // done by 60, 65.
  Program program = beside_an_exchange(1);
  Operation reduction;
  reduction.name = "reduction";
  reduction.stream = StreamKind::gradients;
  reduction.groups = 0;
  reduction.after = {0};
  program.add(reduction);
  const Execution execution = run_contended(program, uniform({10, 50, 30, 7, 30}), {2, 1});
  CHECK(execution.finish[execution.at(1, 0)] == Picoseconds(60));
  CHECK(execution.finish[execution.at(4, 0)] == Picoseconds(40));
  CHECK(execution.finish[execution.at(2, 0)] == Picoseconds(65));
  // Compute slows both: 30 from 10 to 40, in which each does 20.
  const Execution slowed = run_contended(program, uniform({10, 50, 30, 7, 30}), {1, 1.5});
  CHECK(slowed.finish[slowed.at(1, 0)] == Picoseconds(70));
  CHECK(slowed.finish[slowed.at(4, 0)] == Picoseconds(50));
}

}  // namespace moesim::engine
