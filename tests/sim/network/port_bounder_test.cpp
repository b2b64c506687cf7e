#include "sim/network/ports/port_bounder.hpp"

#include <algorithm>
#include <cstdio>

#include "sim/base/error.hpp"
#include "sim/base/random.hpp"
#include "sim/network/exchange/exchange.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "tests/sim/network/exchange_shapes.hpp"
#include "tests/sim/network/naive_flows.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_exchange.hpp"

namespace moesim::network {
namespace {

struct Answer {
  double makespan = 0;
  std::vector<double> rank_finish;
};

Answer exact_answer(const Topology& topology, const ByteMatrix& bytes,
                    const std::vector<Picoseconds>& start) {
  std::vector<Flow> flows;
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      if (source == destination || bytes.at(source, destination) == 0) continue;
      flows.push_back({source, destination, bytes.at(source, destination),
                       start.empty() ? Picoseconds(0) : start[static_cast<std::size_t>(source)]});
    }
  }
  const std::vector<double> ends = naive_flows(topology, flows);
  Answer answer;
  answer.rank_finish.resize(static_cast<std::size_t>(bytes.ranks()));
  for (std::size_t flow = 0; flow < flows.size(); ++flow) {
    answer.makespan = std::max(answer.makespan, ends[flow]);
    for (const int rank : {flows[flow].source, flows[flow].destination}) {
      double& finish = answer.rank_finish[static_cast<std::size_t>(rank)];
      finish = std::max(finish, ends[flow]);
    }
  }
  return answer;
}

}  // namespace

TEST_CASE("the port bound is exact on the known bursts") {
  // Issue table: burst makespans in us, to 1 ns, of the shapes whose busiest port sees equal sizes.
  struct Known {
    int ranks;
    double switch_uniform, switch_zipf, node_uniform, node_zipf, tree_uniform;
  };
  for (const Known& known : {Known{8, 147.801, 433.107, 17.311, 49.012, 147.801},
                             Known{16, 315.573, 1489.781, 169.772, 796.016, 315.573},
                             Known{32, 651.117, 5126.976, 505.316, 3970.497, 672.089},
                             Known{64, 1322.206, 17825.434, 1176.405, 15845.941, 2014.266}}) {
    const auto check_burst = [&](const Topology& topology, const ByteMatrix& bytes, double us) {
      const PortBound bound = PortBounder(topology).bound(bytes);
      CHECK(bound.exact);
      CHECK(bound.lower.us() == Approx(us).margin(0.0006).epsilon(0));
      CHECK(bound.slack() == 0);
    };
    INFO(known.ranks << " ranks");
    check_burst(ideal_switch(known.ranks), uniform_matrix(known.ranks), known.switch_uniform);
    check_burst(ideal_switch(known.ranks), zipf_matrix(known.ranks), known.switch_zipf);
    check_burst(ideal_node8(known.ranks), uniform_matrix(known.ranks), known.node_uniform);
    check_burst(ideal_node8(known.ranks), zipf_matrix(known.ranks), known.node_zipf);
    check_burst(ideal_tree2(known.ranks), uniform_matrix(known.ranks), known.tree_uniform);
  }
}

TEST_CASE("the port bound brackets cases that need real sharing") {
  ByteMatrix bytes(4);
  const int rows[4][4] = {{0, 5, 3, 4}, {3, 0, 3, 0}, {4, 0, 0, 0}, {6, 0, 8, 0}};
  for (int source = 0; source < 4; ++source) {
    for (int destination = 0; destination < 4; ++destination) {
      bytes.at(source, destination) = rows[source][destination] * mebibyte;
    }
  }
  const Topology topology = ideal_switch(4);
  const PortBound bound = PortBounder(topology).bound(bytes);
  // 14 MiB leave rank 3 and arrive at rank 2: 14 * 1048576 / 50e3 + 1 = 294.601 us.
  CHECK(bound.lower.us() == Approx(294.601).margin(0.0006).epsilon(0));
  CHECK(bound.upper.us() >= 357.516);
  CHECK_FALSE(bound.exact);
  const Answer answer = exact_answer(topology, bytes, {});
  CHECK(answer.makespan * 1e-6 == Approx(357.516).margin(0.0006).epsilon(0));
  std::vector<Picoseconds> start(4);
  start[1] = Picoseconds::from_us(50);
  start[3] = Picoseconds::from_us(100);
  CHECK(exact_answer(topology, bytes, start).makespan * 1e-6 ==
        Approx(413.164).margin(0.0006).epsilon(0));
}

namespace {

// A random exchange of one kind; `draw` is its own stream.
struct RandomCase {
  Topology topology;
  ByteMatrix bytes;
  std::vector<Picoseconds> start;
};

enum class Kind { balanced, noisy, zipf, zipf_noisy, dense, skewed, sparse, one_port, late };
constexpr const char* kind_names[] = {"equal blocks",
                                      "balanced counts, 5 % noise",
                                      "popular destinations",
                                      "popular, 5 % noise",
                                      "sizes 0 to 2",
                                      "sizes of orders of magnitude",
                                      "one pair in five",
                                      "one port busy",
                                      "sizes 0 to 2, late starts"};
constexpr int kinds = 9;

std::int64_t any_size(Kind kind, int source, int destination, Stream& draw) {
  constexpr double unit = 1e6;
  const double popular = 1 / (destination + 1.0);
  switch (kind) {
    case Kind::balanced:
      return static_cast<std::int64_t>(unit);
    case Kind::noisy:
      return static_cast<std::int64_t>(unit * std::max(0.5, 1 + 0.05 * draw.normal()));
    case Kind::zipf:
      return static_cast<std::int64_t>(unit * popular);
    case Kind::zipf_noisy:
      return static_cast<std::int64_t>(unit * popular * std::max(0.5, 1 + 0.05 * draw.normal()));
    case Kind::dense:
    case Kind::late:
      return static_cast<std::int64_t>(2 * unit * draw.uniform());
    case Kind::skewed:
      return static_cast<std::int64_t>(std::exp(std::log(unit) * draw.uniform()));
    case Kind::sparse:
      return draw.uniform() < 0.2 ? 1 + static_cast<std::int64_t>(unit * draw.uniform()) : 0;
    case Kind::one_port:
      return static_cast<std::int64_t>(
          source == 0 || destination == 0 ? unit : unit * 0.3 * draw.uniform());
  }
  return 0;
}

RandomCase random_case(Kind kind, std::uint32_t number) {
  Stream draw({.purpose = Purpose::test_data,
               .replica = number,
               .layer = static_cast<std::uint32_t>(kind)});
  const int ranks = 2 + static_cast<int>(draw.uniform() * 14);
  RandomCase one{ideal_switch(ranks), ByteMatrix(ranks), {}};
  const double shape = draw.uniform();
  if (shape < 0.25) one.topology = ideal_node8(ranks, 1 + static_cast<int>(draw.uniform() * 5));
  if (shape > 0.7) {
    add_leaves(one.topology, 1 + static_cast<int>(draw.uniform() * 5),
               Bandwidth(1e9 * (20 + 300 * draw.uniform())), Picoseconds(shape > 0.85 ? 700 : 0));
    // A second tier of two switches above the leaves.
    if (shape > 0.9) add_leaves(one.topology, (ranks + 1) / 2, Bandwidth(100e9), Picoseconds(90));
  }
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source == destination) continue;
      one.bytes.at(source, destination) = any_size(kind, source, destination, draw);
    }
  }
  if (kind != Kind::late) return one;
  for (int rank = 0; rank < ranks; ++rank) {
    one.start.push_back(Picoseconds::from_us(draw.uniform() * 100));
  }
  return one;
}

// Sums over the cases of one kind.
struct Tally {
  double exact = 0;    // cases that were claimed to be
  double off = 0;      // exact makespan over the lower bound, less 1
  double slack = 0;    // upper over lower, less 1
  double refined = 0;  // the same after refine()
  double by_rank = 0;  // the widest rank's gap over the makespan
  double by_rank_refined = 0;
};

double widest(const PortBound& bound) {
  Picoseconds gap;
  for (std::size_t rank = 0; rank < bound.rank_lower.size(); ++rank) {
    gap = std::max(gap, bound.rank_upper[rank] - bound.rank_lower[rank]);
  }
  return bound.lower.count > 0 ? gap.us() / bound.lower.us() : 0;
}

}  // namespace

TEST_CASE("the exact answer is always inside the port bound") {
  // Both sides carry doubles and whole picoseconds: 3 ps and a billionth.
  const auto inside = [](double exact, Picoseconds lower, Picoseconds upper) {
    const double room = 3 + 1e-9 * exact;
    return exact >= static_cast<double>(lower.count) - room &&
           exact <= static_cast<double>(upper.count) + room;
  };
  std::printf("%-30s %7s %8s %8s %8s %8s %8s\n", "burst, 2 to 15 ranks; means", "exact", "off",
              "slack", "refined", "by rank", "refined");
  for (int kind = 0; kind < kinds; ++kind) {
    constexpr std::uint32_t cases = 400;
    Tally tally;
    for (std::uint32_t number = 0; number < cases; ++number) {
      const RandomCase one = random_case(static_cast<Kind>(kind), number);
      INFO(kind_names[kind] << ", case " << number);
      PortBounder bounder(one.topology);
      PortBound bound = bounder.bound(one.bytes, one.start);
      const Answer answer = exact_answer(one.topology, one.bytes, one.start);
      const auto check_inside = [&] {
        REQUIRE(inside(answer.makespan, bound.lower, bound.upper));
        if (bound.exact) REQUIRE(inside(answer.makespan, bound.lower, bound.lower));
        for (std::size_t rank = 0; rank < answer.rank_finish.size(); ++rank) {
          CAPTURE(rank);
          REQUIRE(inside(answer.rank_finish[rank], bound.rank_lower[rank], bound.rank_upper[rank]));
        }
      };
      check_inside();
      tally.exact += bound.exact ? 1.0 : 0.0;
      if (bound.lower.count > 0) tally.off += answer.makespan * 1e-6 / bound.lower.us() - 1;
      tally.slack += bound.slack();
      tally.by_rank += widest(bound);
      bounder.refine(one.bytes, one.start, bound);
      check_inside();
      tally.refined += bound.slack();
      tally.by_rank_refined += widest(bound);
    }
    std::printf("%-30s %6.1f%% %+7.1f%% %+7.1f%% %+7.1f%% %+7.1f%% %+7.1f%%\n", kind_names[kind],
                100 * tally.exact / cases, 100 * tally.off / cases, 100 * tally.slack / cases,
                100 * tally.refined / cases, 100 * tally.by_rank / cases,
                100 * tally.by_rank_refined / cases);
  }
}

TEST_CASE("bounds hold on rails, shared NICs and thin leaves of shipped clusters") {
  for (const char* name : {"hgx-h100", "pcie-l40s", "ideal-tree2", "gb200-nvl72"}) {
    const cluster::Cluster cluster = cluster::Cluster::load(name);
    // Every third GPU: ranks on several nodes, or racks of them, and in several local places.
    std::vector<int> gpus;
    for (int rank = 0; rank < 12; ++rank) {
      gpus.push_back(std::string(name) == "gb200-nvl72" ? 11 * rank : 3 * rank);
    }
    const Topology topology = topology_of(cluster, gpus);
    PortBounder bounder(topology);
    for (std::uint32_t number = 0; number < 30; ++number) {
      INFO(name << ", case " << number);
      Stream draw({.purpose = Purpose::test_data, .replica = number, .layer = 50});
      ByteMatrix bytes(12);
      for (int source = 0; source < 12; ++source) {
        for (int destination = 0; destination < 12; ++destination) {
          const double amount = 1e6 * draw.uniform() * draw.uniform();
          // The diagonal is a copy: no bound counts it.
          bytes.at(source, destination) = static_cast<std::int64_t>(amount);
        }
      }
      const Answer answer = exact_answer(topology, bytes, {});
      PortBound bound = bounder.bound(bytes);
      for (int round = 0; round < 2; ++round) {
        const double room = 3 + 1e-9 * answer.makespan;
        REQUIRE(answer.makespan >= static_cast<double>(bound.lower.count) - room);
        REQUIRE(answer.makespan <= static_cast<double>(bound.upper.count) + room);
        for (std::size_t rank = 0; rank < 12; ++rank) {
          const double finish = answer.rank_finish[rank];
          REQUIRE(finish >= static_cast<double>(bound.rank_lower[rank].count) - room);
          REQUIRE(finish <= static_cast<double>(bound.rank_upper[rank].count) + room);
        }
        bounder.refine(bytes, {}, bound);
      }
    }
  }
}

TEST_CASE("the fast answer holds for random starts, with ranks that have nothing to say") {
  int idle_ranks = 0;
  int last_of_all = 0;
  for (std::uint32_t number = 0; number < 300; ++number) {
    Stream draw({.purpose = Purpose::test_data, .replica = number, .layer = 60});
    const int ranks = 3 + static_cast<int>(draw.uniform() * 8);
    const Topology topology = ideal_node8(ranks, 1 + static_cast<int>(draw.uniform() * 4));
    ByteMatrix bytes(ranks);
    std::vector<Picoseconds> start;
    std::vector<bool> idle;
    for (int rank = 0; rank < ranks; ++rank) {
      start.push_back(Picoseconds::from_us(1 + 400 * draw.uniform()));
      idle.push_back(draw.uniform() < 0.3);
    }
    for (int source = 0; source < ranks; ++source) {
      for (int destination = 0; destination < ranks; ++destination) {
        const bool silent = source != destination && (idle[static_cast<std::size_t>(source)] ||
                                                      idle[static_cast<std::size_t>(destination)]);
        const double share = 0.2 + draw.uniform();
        if (!silent) bytes.at(source, destination) = static_cast<std::int64_t>(1e6 * share);
      }
    }
    const bool none = std::count(idle.begin(), idle.end(), false) < 2;
    for (const ExchangeSchedule* schedule :
         {&schedules::burst, &schedules::nccl, &schedules::hierarchical}) {
      const auto by = [&](Method method) {
        ExchangeSettings settings;
        settings.method = method;
        return simulate_exchange(topology, bytes, start, *schedule, settings);
      };
      const ExchangeTimes exact = by(Method::flows);
      const Picoseconds rounding(50);  // a picosecond or two per event of the flows
      INFO(schedule->name << ", case " << number);
      for (const Method method : {Method::fast, Method::automatic}) {
        const ExchangeTimes fast = by(method);
        REQUIRE(exact.makespan + rounding >= fast.lower);
        REQUIRE(exact.makespan <= fast.upper + rounding);
        for (std::size_t rank = 0; rank < idle.size(); ++rank) {
          CAPTURE(rank);
          REQUIRE(exact.rank_finish[rank] + rounding >= fast.rank_finish[rank]);
          if (!idle[rank] || schedule == &schedules::hierarchical) continue;  // it may forward
          REQUIRE(fast.rank_finish[rank] == start[rank]);
          REQUIRE(exact.rank_finish[rank] == start[rank]);
        }
      }
      if (none) REQUIRE(exact.makespan == Picoseconds(0));
      const auto latest =
          static_cast<std::size_t>(std::max_element(start.begin(), start.end()) - start.begin());
      last_of_all += idle[latest] && exact.makespan < start[latest] ? 1 : 0;
      idle_ranks += static_cast<int>(std::count(idle.begin(), idle.end(), true));
    }
  }
  CHECK(idle_ranks > 900);
  CHECK(last_of_all > 10);  // an idle rank starts after the last byte
}

TEST_CASE("a bound beyond the end of simulated time is refused") {
  // At 1 Gb/s 1e15 bytes take 8e6 s, 1.2e15 take 9.6e6: the last of 2^63 ps is 9.22e6.
  const Topology slow = crossbar(2, Bandwidth(125e6), Picoseconds(0));
  ByteMatrix bytes(2);
  bytes.at(0, 1) = 1'000'000'000'000'000;
  CHECK(PortBounder(slow).bound(bytes).lower.us() == Approx(8e12));
  for (const std::int64_t many : {1'200'000'000'000'000, 4'000'000'000'000'000}) {
    bytes.at(0, 1) = many;
    PortBounder bounder(slow);
    CHECK_THROWS_WITH(bounder.bound(bytes), ContainsSubstring("106 days"));
  }
}

// check() accepts -1, or any other number that is no link, where nothing passes.
TEST_CASE("ranks that need no port may have none") {
  Topology topology = ideal_node8(3, 2);  // rank 2 is alone in its domain
  add_leaves(topology, 2, Bandwidth(30e9), Picoseconds(0));
  Tier inside;
  inside.switch_of = {0, 1, -1};
  const int links = static_cast<int>(topology.links.size());
  for (int number = 0; number < 2; ++number) {
    topology.links.push_back({"inside", Bandwidth(100e9), Picoseconds(0)});
    inside.up.push_back(links + number);
    inside.down.push_back(links + number);
  }
  inside.up.push_back(-1);
  inside.down.push_back(-1);
  topology.inner.tiers.push_back(inside);
  ByteMatrix bytes(3);
  bytes.at(0, 1) = 3'000'000;
  bytes.at(0, 2) = 1'000'000;
  bytes.at(2, 1) = 2'000'000;
  const Answer answer = exact_answer(topology, bytes, {});
  for (const int none : {-1, 1 << 28}) {
    topology.inner.port_up[2] = none;
    topology.inner.port_down[2] = none;
    check(topology);
    PortBounder bounder(topology);
    PortBound bound = bounder.bound(bytes);
    bounder.refine(bytes, {}, bound);
    CHECK(static_cast<double>(bound.lower.count) == Approx(answer.makespan).epsilon(1e-6));
    CHECK(static_cast<double>(bound.upper.count) == Approx(answer.makespan).epsilon(1e-6));
  }
}

// As large as files of byte matrices may be: 2^53 B at 50e9 B/s and 1 us of latency.
TEST_CASE("amounts are bounded up to 2^53 bytes, those beyond refused by name") {
  const Topology topology = ideal_switch(5);
  ByteMatrix bytes(5);
  PortBounder bounder(topology);
  for (const std::int64_t less : {0, 1, 4096}) {
    bytes.at(3, 1) = (std::int64_t{1} << 53) - less;
    const PortBound bound = bounder.bound(bytes);
    CHECK(bound.exact);
    CHECK(bound.lower.us() ==
          Approx(1 + static_cast<double>(bytes.at(3, 1)) / 50e3).epsilon(1e-15));
    const FlowTimes exact = run_exchange(topology, bytes);
    CHECK(std::abs((exact.makespan - bound.lower).count) <= 8192);  // a double's last bit
  }
  bytes.at(3, 1) = 1'000'000;
  CHECK(bounder.bound(bytes).lower.us() == Approx(21));
  for (const std::int64_t bad : {(std::int64_t{1} << 53) + 1, std::int64_t{-1}}) {
    bytes.at(3, 1) = bad;
    CHECK_THROWS_WITH(bounder.bound(bytes), ContainsSubstring("row 3, column 1"));
  }
}

}  // namespace moesim::network
