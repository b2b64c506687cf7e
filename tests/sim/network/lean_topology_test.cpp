#include "sim/network/topology/lean_topology.hpp"

#include "sim/network/exchange/exchange.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "tests/sim/network/exchange_shapes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_exchange.hpp"

namespace moesim::network {
namespace {

Topology with_leaves(int ranks, double share) {
  Topology topology = ideal_switch(ranks);
  add_leaves(topology, 4, Bandwidth(share * 4 * 50e9), Picoseconds(300'000));
  return topology;
}

}  // namespace

TEST_CASE("switches that carry all that is below them are left out, their latency is not") {
  const Topology full = with_leaves(12, 1);
  const LeanTopology lean(full);
  CHECK(lean.links().outer.tiers.empty());
  CHECK(lean.delay(0, 1) == Picoseconds(0));        // below one leaf
  CHECK(lean.delay(0, 4) == Picoseconds(600'000));  // up and down
  const Topology narrow = with_leaves(12, 0.99);
  CHECK(LeanTopology(narrow).links().outer.tiers.size() == 1);
  CHECK(LeanTopology(narrow).delay(0, 4) == Picoseconds(0));
}

TEST_CASE("exchanges take the same time without the links that cannot hold them back") {
  // 20 ranks are few enough for the solver that tells all ends apart exactly.
  for (const double share : {0.5, 1.0, 2.0}) {
    const Topology topology = with_leaves(20, share);
    for (const ByteMatrix& bytes : {routed_matrix(20), zipf_matrix(20)}) {
      std::vector<Picoseconds> start;
      for (int rank = 0; rank < 20; ++rank) start.push_back(Picoseconds(rank % 3 * 7'000'000));
      const FlowTimes whole = run_exchange(topology, bytes, start);
      ExchangeSettings settings;
      settings.method = Method::flows;
      const ExchangeTimes lean =
          simulate_exchange(topology, bytes, start, schedules::burst, settings);
      CHECK(lean.makespan.us() == Approx(whole.makespan.us()).margin(2e-5).epsilon(0));
      for (std::size_t rank = 0; rank < 20; ++rank) {
        CHECK(lean.rank_finish[rank].us() ==
              Approx(whole.rank_finish[rank].us()).margin(2e-5).epsilon(0));
      }
    }
  }
}

TEST_CASE("bursts of hundreds of ranks are off by nanoseconds, and say so", "[slow]") {
  CHECK(flow_tolerance(64) == Picoseconds(1));
  const Topology topology = ideal_switch(256);
  ExchangeSettings settings;
  settings.method = Method::flows;
  const ByteMatrix bytes = routed_matrix(256);
  const ExchangeTimes times = simulate_exchange(topology, bytes, {}, schedules::burst, settings);
  CHECK(times.tolerance == Picoseconds(1'000));
  CHECK(times.makespan.us() ==
        Approx(run_exchange(topology, bytes).makespan.us()).margin(0.02).epsilon(0));
}

TEST_CASE("a simulation message by message tells how far it is") {
  ExchangeSettings settings;
  std::size_t told = 0, last = 0, steps = 0;
  settings.progress = [&](std::size_t ended, std::size_t of) {
    ++told;
    CHECK(ended > last);
    CHECK(ended <= of);
    last = ended;
    steps = of;
  };
  simulate_exchange(ideal_switch(120), uniform_matrix(120), {}, schedules::pairwise, settings);
  // 120 joins at the start, then 120 messages in each of 119 rounds.
  CHECK(steps == 120 + 119 * 120);
  CHECK(told == steps / 4096);
}

}  // namespace moesim::network
