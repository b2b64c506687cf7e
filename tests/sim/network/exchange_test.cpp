#include "sim/network/exchange/exchange.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/random.hpp"
#include "sim/network/exchange/collective_exchange.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "sim/network/ports/port_bounder.hpp"
#include "sim/network/schedules/nccl_schedule.hpp"
#include "tests/sim/network/exchange_shapes.hpp"
#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

ExchangeSettings by(Method method) {
  ExchangeSettings settings;
  settings.method = method;
  return settings;
}

ExchangeSettings in_slices(int slices) {
  ExchangeSettings settings;
  settings.slices = slices;
  return settings;
}

double us(const Topology& topology, const ByteMatrix& bytes, const ExchangeSchedule& schedule,
          const ExchangeSettings& settings = {}) {
  return simulate_exchange(topology, bytes, {}, schedule, settings).makespan.us();
}

ByteMatrix random_matrix(int ranks, std::uint32_t number) {
  Stream draw({.purpose = Purpose::test_data, .replica = number, .layer = 100});
  const bool sparse = draw.uniform() < 0.3;
  ByteMatrix bytes(ranks);
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source == destination || (sparse && draw.uniform() < 0.7)) continue;
      bytes.at(source, destination) = static_cast<std::int64_t>(1e6 * draw.uniform());
    }
  }
  return bytes;
}

// One message takes its two links' latency and its bytes at 50 GB/s (NICs, 1 us each) or 450 GB/s.
constexpr double nic_latency = 2;
constexpr double nvlink_latency = 1;
double nic_us(double bytes) { return bytes / 50e3; }
double nvlink_us(double bytes) { return bytes / 450e3; }

}  // namespace

TEST_CASE("schedules and methods have names that can be read back") {
  for (const ExchangeSchedule* schedule : all_schedules) {
    CHECK(&find_schedule(schedule->name) == schedule);
    CHECK((schedule->plan != nullptr || schedule->times != nullptr));
  }
  for (const Method method : {Method::automatic, Method::flows, Method::fast}) {
    CHECK(value_in(method_names, name_of(method), "--network") == method);
  }
  CHECK_THROWS_WITH(find_schedule("ring"), ContainsSubstring("hierarchical"));
  CHECK_THROWS_AS(value_in(method_names, "exact", "--network"), UsageError);
}

TEST_CASE("a burst says how it was found and how sure that is") {
  const Topology topology = ideal_switch(16);
  const auto sure = simulate_exchange(topology, zipf_matrix(16), {}, schedules::burst);
  CHECK(sure.used == Method::fast);
  CHECK(sure.lower == sure.upper);
  CHECK(sure.makespan.us() == Approx(1489.781).margin(0.0006).epsilon(0));
  // All sizes differ: some rank's bounds are more than 1 % apart, and only flows know.
  const auto routed = simulate_exchange(topology, routed_matrix(16), {}, schedules::burst);
  CHECK(routed.used == Method::flows);
  CHECK(routed.lower == routed.makespan);
  const auto fast =
      simulate_exchange(topology, routed_matrix(16), {}, schedules::burst, by(Method::fast));
  CHECK(fast.used == Method::fast);
  CHECK(fast.lower < fast.upper);
  CHECK(fast.lower <= routed.makespan);
  CHECK(fast.upper >= routed.makespan);
  CHECK(us(topology, zipf_matrix(16), schedules::burst, by(Method::flows)) ==
        Approx(sure.makespan.us()).margin(1e-5));
}

TEST_CASE("a fixed order of messages takes longer than all at once") {
  // Uniform: every round is a permutation of equal messages, 15 rounds one after another.
  CHECK(us(ideal_switch(16), uniform_matrix(16), schedules::pairwise) ==
        Approx(15 * (1 + nic_us(mebibyte))).margin(1e-4));
  // zipf1: the ranks meet at the popular destinations and leave others idle meanwhile. The loss
  // grows with the ranks: 1.3 times the burst for 8, 2.0 for 64, 2.3 for 256, 2.5 for 512.
  const auto ratio = [](int ranks) {
    return us(ideal_switch(ranks), zipf_matrix(ranks), schedules::pairwise) /
           us(ideal_switch(ranks), zipf_matrix(ranks), schedules::burst);
  };
  CHECK(ratio(8) == Approx(1.305).margin(0.0006).epsilon(0));
  CHECK(ratio(64) == Approx(1.969).margin(0.0006).epsilon(0));
}

TEST_CASE("pairwise order at 256 ranks", "[.slow]") {
  const double burst = us(ideal_switch(256), zipf_matrix(256), schedules::burst);
  CHECK(us(ideal_switch(256), zipf_matrix(256), schedules::pairwise) / burst ==
        Approx(2.344).margin(0.001).epsilon(0));
}

TEST_CASE("NCCL serves its peers in the order of its source") {
  // 16 nodes of one GPU: the sequence that a comment in NCCL's init.cc gives.
  CHECK(nccl_peers(ideal_switch(16), 0) ==
        std::vector<int>{0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8});
  // One node: by distance. Two nodes of 4: the own one first.
  CHECK(nccl_peers(ideal_node8(4), 1) == std::vector<int>{1, 2, 3, 0});
  CHECK(nccl_peers(ideal_node8(8, 4), 1) == std::vector<int>{1, 2, 3, 0, 5, 6, 7, 4});
  // Whatever the domains, in each round every rank receives from exactly one.
  for (const int node : {2, 3, 4, 5, 8}) {
    const int ranks = 21;
    const Topology topology = ideal_node8(ranks, node);
    std::vector<std::vector<int>> peers;
    for (int rank = 0; rank < ranks; ++rank) peers.push_back(nccl_peers(topology, rank));
    for (std::size_t round = 0; round < ranks; ++round) {
      std::vector<int> receivers;
      for (const auto& of_rank : peers) receivers.push_back(of_rank[round]);
      std::sort(receivers.begin(), receivers.end());
      std::vector<int> all(ranks);
      std::iota(all.begin(), all.end(), 0);
      CHECK(receivers == all);
    }
  }
}

TEST_CASE("NCCL's channels bound how many peers are served at once") {
  // As many channels as rounds: all at once.
  const Topology topology = ideal_switch(16);
  CHECK(us(topology, routed_matrix(16), schedules::nccl) ==
        us(topology, routed_matrix(16), schedules::burst));
  // One channel, batches of one round: 15 permutations of equal messages, then the copy.
  ExchangeSettings narrow;
  narrow.nccl.channels = 1;
  narrow.nccl.batch = 1;
  CHECK(us(topology, uniform_matrix(16), schedules::nccl, narrow) ==
        Approx(15 * (1 + nic_us(mebibyte))).margin(1e-4));
  // Two channels take the 16 nodes' rounds two by two (the copy has the first place): each pair
  // shares the port, 2 b / B, the first pair's message has it alone.
  narrow.nccl.channels = 2;
  CHECK(us(topology, uniform_matrix(16), schedules::nccl, narrow) ==
        Approx(8 + nic_us(15.0 * mebibyte)).epsilon(0.001));
  // The LL protocol doubles small messages inside a domain, not through NICs.
  const ByteMatrix small = uniform_matrix(8, 10'000);
  CHECK(us(ideal_node8(8), small, schedules::nccl) ==
        Approx(nvlink_latency + 7 * nvlink_us(20'000)).margin(1e-5));
  CHECK(us(ideal_switch(8), small, schedules::nccl) == Approx(1 + 7 * nic_us(10'000)).margin(1e-5));
}

TEST_CASE("a hierarchical exchange sends few large messages between domains") {
  // 4 domains of 8, b to each of 31: inside every rank sends each of 7 neighbours its own b and
  // what goes to 3 ranks on their rails; across it sends 8 b to each of 3.
  const Topology topology = ideal_node8(32);
  const double expected =
      nvlink_latency + 7 * nvlink_us(4.0 * mebibyte) + nic_latency + 3 * nic_us(8.0 * mebibyte);
  const auto fast = simulate_exchange(topology, uniform_matrix(32), {}, schedules::hierarchical);
  CHECK(fast.used == Method::fast);
  CHECK(fast.makespan.us() == Approx(expected).margin(1e-5));
  CHECK(us(topology, uniform_matrix(32), schedules::hierarchical, by(Method::flows)) ==
        Approx(expected).margin(1e-4));
}

TEST_CASE("bounds of hierarchical exchanges hold on random matrices") {
  for (std::uint32_t number = 0; number < 200; ++number) {
    const int ranks = 3 + static_cast<int>(number % 10);
    const Topology topology = ideal_node8(ranks, 1 + static_cast<int>(number % 4));
    const ByteMatrix bytes = random_matrix(ranks, number);
    std::vector<Picoseconds> start;
    if (number % 2 == 1) {
      for (int rank = 0; rank < ranks; ++rank) start.push_back(Picoseconds::from_us(rank * 3.0));
    }
    const auto exact =
        simulate_exchange(topology, bytes, start, schedules::hierarchical, by(Method::flows));
    const auto fast =
        simulate_exchange(topology, bytes, start, schedules::hierarchical, by(Method::fast));
    INFO("case " << number);
    const Picoseconds rounding(50);  // a picosecond or two per event of the flows
    REQUIRE(exact.makespan + rounding >= fast.lower);
    REQUIRE(exact.makespan <= fast.upper + rounding);
    for (std::size_t rank = 0; rank < fast.rank_finish.size(); ++rank) {
      REQUIRE(exact.rank_finish[rank] + rounding >= fast.rank_finish[rank]);
    }
  }
}

TEST_CASE("PXN takes NVLink to the rail of the destination") {
  // 2 domains of 2; rank 0 sends to rank 3, whose rail is rank 1's: in one slice, one hop after the
  // other; to rank 2, on its own rail, directly.
  const Topology topology = ideal_node8(4, 2);
  ByteMatrix bytes(4);
  bytes.at(0, 3) = 4'000'000;
  CHECK(us(topology, bytes, schedules::pxn, in_slices(1)) ==
        Approx(nvlink_latency + nvlink_us(4e6) + nic_latency + nic_us(4e6)).margin(1e-5));
  // In slices the NIC works while the next slice arrives: each slice takes its 2 us of latency,
  // then shares the NIC, which is busy from the first slice's entry on.
  const double first = nvlink_latency + nvlink_us(1e6) + nic_latency;
  CHECK(us(topology, bytes, schedules::pxn, in_slices(4)) ==
        Approx(first + nic_us(4e6)).margin(1e-5));
  ByteMatrix straight(4);
  straight.at(0, 2) = 4'000'000;
  CHECK(us(topology, straight, schedules::pxn) == Approx(nic_latency + nic_us(4e6)).margin(1e-5));
}

TEST_CASE("DeepEP's rows cross once for all experts of a domain") {
  // 2 domains of 2; rank 0 has b for both ranks over there; share s of the 2 b rows cross to rank 2
  // on its rail, which passes b on to rank 3.
  const Topology topology = ideal_node8(4, 2);
  ByteMatrix bytes(4);
  bytes.at(0, 2) = bytes.at(0, 3) = 3'000'000;
  ExchangeSettings settings = in_slices(1);
  for (const double share : {1.0, 0.75, 0.5}) {
    settings.distinct_share = share;
    CHECK(us(topology, bytes, schedules::deepep, settings) ==
          Approx(nic_latency + nic_us(6e6 * share) + nvlink_latency + nvlink_us(3e6)).margin(1e-5));
  }
  settings.distinct_share = 0;
  CHECK_THROWS_AS(simulate_exchange(topology, bytes, {}, schedules::deepep, settings), UsageError);
}

TEST_CASE("settings of an exchange outside of their range are refused by their names") {
  const Topology topology = ideal_node8(4, 2);
  ByteMatrix bytes(4);
  bytes.at(0, 2) = 3'000'000;
  const auto refused = [&](auto change, const char* part) {
    ExchangeSettings settings;
    change(settings);
    CHECK_THROWS_WITH(simulate_exchange(topology, bytes, {}, schedules::nccl, settings),
                      ContainsSubstring(part));
  };
  refused([](ExchangeSettings& asked) { asked.tolerance = std::nan(""); }, "tolerance nan");
  refused([](ExchangeSettings& asked) { asked.tolerance = -0.1; }, "from 0 to 1");
  refused([](ExchangeSettings& asked) { asked.slices = 0; }, "slices 0");
  refused([](ExchangeSettings& asked) { asked.nccl.channels = 0; }, "channels 0");
  refused([](ExchangeSettings& asked) { asked.nccl.batch = -1; }, "batch -1");
  refused([](ExchangeSettings& asked) { asked.nccl.parts = 0; }, "parts 0");
  refused([](ExchangeSettings& asked) { asked.nccl.low_latency_bytes = -1; },
          "low_latency_bytes -1");
  refused([](ExchangeSettings& asked) { asked.nccl.low_latency_overhead = 0.5; },
          "low_latency_overhead 0.5");
  const std::vector<Flow> flows = {{0, 2, 100, Picoseconds(0)}};
  CHECK_THROWS_WITH(run_flows(topology, flows, {.fold = true, .tolerance = Picoseconds(-1)}),
                    ContainsSubstring("FlowOptions::tolerance"));
}

TEST_CASE("how many domains a token's choices reach") {
  // 2 of 4 experts on 2 domains: both on one with probability 2 * 1/6, so 5/3 domains of 2 choices.
  CHECK(distinct_share(4, 2, 2) == Approx(5.0 / 6));
  CHECK(distinct_share(64, 8, 1) == 1);
  CHECK(distinct_share(64, 1, 8) == Approx(1.0 / 8));
  CHECK(distinct_share(8, 8, 8) == Approx(1));
  // DeepSeek-V3's 8 of 256 on 8 nodes: 8 (1 - C(224, 8) / C(256, 8)) / 8 with
  // C(224, 8) / C(256, 8) = 0.338168.
  CHECK(distinct_share(256, 8, 8) == Approx(1 - 0.338168).margin(1e-6));
}

TEST_CASE("every schedule respects ports, names and bad requests") {
  for (std::uint32_t number = 0; number < 60; ++number) {
    const int ranks = 2 + static_cast<int>(number % 9);
    const Topology topology = ideal_node8(ranks, 1 + static_cast<int>(number % 3));
    const ByteMatrix bytes = random_matrix(ranks, 1000 + number);
    const Picoseconds bound = PortBounder(topology).bound(bytes).lower;
    for (const ExchangeSchedule* schedule :
         {&schedules::burst, &schedules::pairwise, &schedules::nccl}) {
      const auto times = simulate_exchange(topology, bytes, {}, *schedule, by(Method::flows));
      INFO(schedule->name << ", case " << number);
      CHECK(times.makespan + Picoseconds(50) >= bound);
      CHECK(*std::max_element(times.rank_finish.begin(), times.rank_finish.end()) ==
            times.makespan);
    }
  }
  const Topology topology = ideal_switch(4);
  ByteMatrix negative(4);
  negative.at(2, 1) = -5;
  const std::vector<Picoseconds> three(3);
  for (const ExchangeSchedule* schedule : all_schedules) {
    CHECK_THROWS_WITH(simulate_exchange(topology, negative, {}, *schedule),
                      ContainsSubstring("row 2, column 1"));
    CHECK_THROWS_AS(simulate_exchange(topology, ByteMatrix(5), {}, *schedule), UsageError);
    CHECK_THROWS_AS(simulate_exchange(topology, ByteMatrix(4), three, *schedule), UsageError);
    // Nothing to send, in whatever order, takes no time.
    CHECK(simulate_exchange(topology, ByteMatrix(4), {}, *schedule).makespan == Picoseconds(0));
  }
}

TEST_CASE("rings and trees") {
  using profile::Collective;
  const Topology topology = ideal_switch(8);
  const double chunk = 1 + nic_us(1e6);
  // 8 MB in chunks of 1 MB: 7 rounds, an all-reduce 14.
  CHECK(simulate_collective(topology, Collective::all_gather, 8'000'000, {}).makespan.us() ==
        Approx(7 * chunk).margin(1e-4));
  CHECK(simulate_collective(topology, Collective::reduce_scatter, 8'000'000, {}).makespan.us() ==
        Approx(7 * chunk).margin(1e-4));
  CHECK(simulate_collective(topology, Collective::all_reduce, 8'000'000, {}).makespan.us() ==
        Approx(14 * chunk).margin(1e-4));
  // Two domains of 4: 4 rings of 2 MB each, 7 chunks of 250 kB over each ring's own pair of NICs.
  // A chunk passes every link of the ring; the last begins 6 NIC times after the first.
  const double nic_chunk = nic_latency + nic_us(250e3);
  const double ring =
      simulate_collective(ideal_node8(8, 4), Collective::all_gather, 8'000'000, {}).makespan.us();
  CHECK(ring >= 6 * nic_chunk);
  CHECK(ring <= 7 * nic_chunk + 7 * (nvlink_latency + 4 * nvlink_us(250e3)));
  // Inside a domain the latency of 10 us is 6.6 of the kernel's start, once, and 3.4 of each hop.
  Topology node = ideal_node8(8);
  for (Link& link : node.links) link.latency = Picoseconds::from_us(5);
  CHECK(simulate_collective(node, Collective::all_gather, 8'000'000, {}).makespan.us() ==
        Approx(6.6 + 7 * (3.4 + nvlink_us(1e6))).margin(1e-4));
  // A tree of two ranks: 8 slices up one after another, the last one down again.
  CHECK(simulate_collective(ideal_switch(2), Collective::all_reduce, 8'000'000, {},
                            CollectiveAlgorithm::tree)
            .makespan.us() == Approx(9 * chunk).margin(1e-4));
  CHECK_THROWS_AS(
      simulate_collective(topology, Collective::all_gather, 8, {}, CollectiveAlgorithm::tree),
      UsageError);
}

}  // namespace moesim::network
